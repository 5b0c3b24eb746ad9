package zsync

import (
	"context"

	"github.com/zsync/zsync/internal/session"
)

func (rw *RWMutex) downgrade(ctx context.Context) error {
	switch {
	case rw.misuse() != nil:
		return rw.misuse()
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	}
	return rw.local.Downgrade(ctx)
}
