package repo

import (
	"os"
	"testing"

	"github.com/zsync/zsync/internal/harness"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		panic(err)
	}
	harness.Main(m)
}
