package supervisor

import (
	"context"
	"fmt"
	"sync"

	"github.com/lofamo/lofamo/internal/supervisor/notify"
)

// rollback is whether most replicas run on an earlier copy of the store, such as yesterday's image of their machines. The nodes remember
// how far the store was. It lasts until this process ends: a restore of a snapshot needs that, and so does an operator who withdraws the
// note.
type rollback struct {
	found chan struct{} // closed when it is found

	// Only for the monitor.
	lost    uint64 // the highest revision that most nodes know; 0: no rollback is found
	noted   bool   // the store has a note of it, for all replicas and their restarts
	missing int    // rounds in which most nodes had a newer list of revoked certificates
}

// missingRounds is how many rounds a newer list of the nodes has time to reach this replica.
const missingRounds = 10

// checkRollback compares what most nodes know with the store, and returns the alarms. A quorum has confirmed the store's revision after
// the nodes stated theirs; 0: no quorum answers.
func (s *Supervisor) checkRollback(ctx context.Context, known notify.Known, revision uint64) []string {
	r := &s.store.rollback
	if r.lost == 0 {
		lost, err := s.store.RolledBack(ctx)
		if r.noted = err == nil && lost > 0; !r.noted && revision > 0 && known.Revision > revision {
			lost = known.Revision
		}
		if lost > 0 {
			s.logger.Error("store rolled back: this replica gives no orders and begins no responses", "lost_revision", lost, "remedy",
				rollbackRemedy)
			r.lost = lost
			close(r.found)
		}
	}
	var words []string
	if r.lost > 0 {
		word := fmt.Sprintf("%s: nodes know revision %d: %s", alarmRolledBack, r.lost, rollbackRemedy)
		if !r.noted {
			if err := s.store.NoteRolledBack(ctx, r.lost); err != nil {
				word += fmt.Sprintf(" (the other replicas do not know it yet: %v)", err)
			} else {
				r.noted = true
			}
		}
		words = append(words, word)
	}
	if have := s.trust.now().GetVersion(); revision > 0 && known.Denied > have {
		if r.missing++; r.missing >= missingRounds {
			words = append(words, fmt.Sprintf("%s: nodes have version %d of the list, the store has %d: lofamoctl cert restore",
				alarmRevocations, known.Denied, have))
		}
	} else {
		r.missing = 0
	}
	return words
}

const rollbackRemedy = "restore all replicas from a snapshot of the newest one"

// acting returns a context for orders and responses, which also ends when a rollback is found.
func (s *Supervisor) acting(ctx context.Context, wg *sync.WaitGroup) context.Context {
	ctx, stop := context.WithCancel(ctx)
	wg.Go(func() {
		defer stop()
		select {
		case <-ctx.Done():
		case <-s.store.rollback.found:
		}
	})
	return ctx
}
