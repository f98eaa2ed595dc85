package command

import (
	"context"
	"errors"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
)

// Unanswered reports whether no supervisor answered, as during a change of the leader: a later try may succeed.
func Unanswered(err error) bool {
	none := (*client.NoAnswerError)(nil)
	return errors.As(err, &none)
}

// Changes is a watch in the background.
type Changes struct {
	Changed <-chan struct{} // receives after changes: one wake covers all changes until then
	Ended   <-chan struct{} // closed when the watch has ended

	stop context.CancelFunc
	err  error
}

// BeginChanges begins a watch, which calls changed at its start and after each change. The caller has to call Stop.
func BeginChanges(ctx context.Context, watch func(ctx context.Context, changed func()) error) *Changes {
	ctx, stop := context.WithCancel(ctx)
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	c := &Changes{Changed: changed, Ended: ended, stop: stop}
	go func() {
		defer close(ended)
		c.err = watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	return c
}

// Err returns why the watch has ended. It is for use after Ended.
func (c *Changes) Err() error { return c.err }

// Stop ends the watch, and returns when it has ended.
func (c *Changes) Stop() {
	c.stop()
	<-c.Ended
}

// WatchMap is a watch of the fault map for BeginChanges.
func WatchMap(s Session) func(ctx context.Context, changed func()) error {
	return func(ctx context.Context, changed func()) error {
		return s.Watch(ctx, client.WatchOptions{Gap: func(uint64, uint64) {}, Progress: func(_ string, err error) {
			if err == nil {
				changed() // a change may have come before the watch
			}
		}}, func(*lofamov1.WatchResponse) error { changed(); return nil })
	}
}
