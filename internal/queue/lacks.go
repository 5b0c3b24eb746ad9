package queue

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
)

func (q *core) Prepare(context.Context, *session.Incarnation, Batch) ([]any, error) {
	return nil, session.Invalid("this layout cannot send as a part of another's transaction")
}

func (q *core) Cancel(context.Context, string) (bool, error) {
	return false, session.Invalid("this layout keeps no IDs")
}

func (it *item) Txn(context.Context, []any) ([]zk.MultiResponse, error) {
	return nil, session.Invalid("this layout cannot acknowledge as a part of a transaction")
}
