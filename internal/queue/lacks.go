package queue

import (
	"context"

	"github.com/zsync/zsync/internal/session"
)

func (q *core) Cancel(context.Context, string) (bool, error) {
	return false, session.Invalid("this layout keeps no IDs")
}
