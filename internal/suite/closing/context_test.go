package closing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// An askedContext calls ask whenever a value is looked up in it.
type askedContext struct {
	context.Context
	ask func()
}

func (c askedContext) Value(key any) any { c.ask(); return c.Context.Value(key) }

// In real time: a goroutine that waits for a mutex keeps virtual time from passing.
func TestACallersContextIsNotAskedUnderTheLockOfASessionThatIsBeingClosed(t *testing.T) {
	harness.InMemory(t)
	t.Parallel()
	srv := zktest.Start(t, harness.Patient)
	s, err := zsync.Connect(t.Context(), srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	within, began, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	held := harness.Async(func() error {
		return zsync.NewMutex(s, "/m").Do(t.Context(), func(ctx context.Context) error {
			close(within)
			<-ctx.Done()
			close(began)
			<-done
			return nil
		})
	})
	<-within
	closed := harness.Async(func() error { return s.Close() })
	asked := 0
	ctx := askedContext{t.Context(), func() {
		asked++
		answered := make(chan struct{})
		go func() { s.ID(); s.State(); close(answered) }()
		select {
		case <-answered:
		case <-time.After(time.Minute):
			t.Error("the Session waits for who asks the context")
		}
	}}
	<-began
	if _, _, err := s.Children(ctx, "/"); !errors.Is(err, zsync.ErrClosed) || asked == 0 {
		t.Errorf("Children = %v, and the context was asked %d times; want ErrClosed", err, asked)
	}
	close(done)
	<-held
	<-closed
}
