package supervisor

import (
	"context"
	"fmt"
	"sync"

	"github.com/lofamo/lofamo/internal/supervisor/notify"
)

// rollback is whether most replicas run on an earlier copy of the store, such as yesterday's image of their machines. The nodes remember
// how far the store was. It lasts until the replicas are restored from a snapshot, and so until this process ends.
type rollback struct {
	found chan struct{} // closed when it is found

	// Only for the monitor.
	lost    uint64 // the highest revision that most nodes know; 0: no rollback is found
	missing int    // rounds in which most nodes had a newer list of revoked certificates
}

// missingRounds is how many rounds a newer list of the nodes has time to reach this replica.
const missingRounds = 10

// checkRollback compares what most nodes know with the store, and returns the alarms. A quorum has confirmed the store's revision after
// the nodes stated theirs; 0: no quorum answers.
func (s *Supervisor) checkRollback(ctx context.Context, known notify.Known, revision uint64) []string {
	r := &s.store.rollback
	if revision > 0 && known.Revision > revision && r.lost == 0 {
		if err := s.store.NoteRolledBack(ctx, known.Revision); err != nil {
			s.logger.Error("store rolled back, and the other replicas not told", "revision", revision, "lost_revision", known.Revision, "err", err)
		}
	}
	if lost, err := s.store.RolledBack(ctx); err == nil && lost > 0 && r.lost == 0 {
		s.logger.Error("store rolled back: this replica gives no orders and begins no responses", "lost_revision", lost, "remedy", rollbackRemedy)
		r.lost = lost
		close(r.found)
	}
	var words []string
	if r.lost > 0 {
		words = append(words, fmt.Sprintf("%s: nodes know revision %d: %s", alarmRolledBack, r.lost, rollbackRemedy))
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
