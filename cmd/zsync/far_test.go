//go:build unix

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/zktest"
)

// This file runs the commands with servers that are far away.

func TestEachCommandDoesTheSameThoughTheServersAreFarAway(t *testing.T) {
	type result struct {
		code int
		out  string
	}
	near := map[int]result{}
	for _, latency := range []time.Duration{0, 20 * time.Millisecond, 80 * time.Millisecond, 150 * time.Millisecond, 700 * time.Millisecond} {
		inMemory(t, func(t *testing.T, srv *zktest.Server) {
			srv.SetLatency(latency)
			says := does(t, func(p *memoryProcess) int { p.say("x"); return 0 })
			for i, line := range []string{
				"lock /lock -- SAYS", "lock --timeout 0 /lock -- SAYS", "rlock /rwlock -- SAYS", "elect /election -- SAYS",
				"once /once -- SAYS", "once /once -- SAYS", "semaphore -n 3 /semaphore -- SAYS",
				"barrier close /gate", "barrier open /gate", "barrier wait /gate", "barrier enter -n 1 /parties",
				"queue send /queue a b c", "queue len /queue", "queue pause /queue", "queue recv /queue", "queue resume /queue",
				"queue recv -n 2 /queue", "queue recv /queue", "queue recv /queue", "queue recv -n 1 /queue",
				"queue send /queue a b c d e f", "queue recv --jobs 3 /queue -- SAYS", "queue send --id 1 /queue v", "queue cancel /queue 1",
				"queue dead /queue", "map get /map key", "value get /value", "status /once /queue",
			} {
				args := strings.Fields(strings.ReplaceAll(line, "SAYS", says))
				begin := time.Now()
				r := start(t, srv.Addr(), "", args...)
				got := result{r.wait(), r.stdout.String()}
				if latency == 0 {
					near[i] = got
				} else if got != near[i] {
					t.Errorf("%s, with servers %v away: status %d, output %q; nearby: %d, %q\nstderr: %s", line, latency, got.code, got.out, near[i].code, near[i].out, &r.stderr)
				}
				if trips := float64(time.Since(begin)-time.Second) / float64(latency+1); trips > 70 {
					t.Errorf("%s, with servers %v away: it took %v, %.0f round trips", line, latency, time.Since(begin), trips)
				}
			}
		})
	}
}
