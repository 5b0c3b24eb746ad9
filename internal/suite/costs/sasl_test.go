package costs

import (
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestAConnectionCostsOneRoundTripAndTwoMoreWithDigestMD5(t *testing.T) {
	t.Parallel()
	bob := zsync.WithSASL(zsync.SASLDigestMD5("bob", "secret"))
	for name, c := range map[string]struct {
		opts  []zsync.Option
		trips time.Duration
	}{"without SASL": {nil, 1}, "DIGEST-MD5": {[]zsync.Option{bob}, 3}} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				srv.SetLatency(way)
				start := time.Now()
				s := suite.Open(t, srv, c.opts...)
				if took := time.Since(start); took != c.trips*way {
					t.Errorf("Connect took %v, want %d round trips of %v", took, c.trips, way)
				}
				if n := s.Stats().Requests; n != 0 {
					t.Errorf("%d requests", n)
				}
			}, zktest.WithSASL(map[string]string{"bob": "secret"}))
		})
	}
}
