package kerberos

import (
	"testing"

	"github.com/zsync/zsync/internal/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
