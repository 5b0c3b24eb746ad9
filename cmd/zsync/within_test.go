package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// A task begins its command after the call of stop. An end that comes later would look like a loss.
func TestALimitThatIsStoppedEndsNothingLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 {
			ctx, stop := within(t.Context(), time.Second, "gave up after %v")
			time.Sleep(time.Second) // the limit ends at this instant
			stop()
			before := ctx.Err()
			if synctest.Wait(); before == nil && ctx.Err() != nil {
				t.Fatal("the context ended after the call of stop")
			}
		}
	})
}
