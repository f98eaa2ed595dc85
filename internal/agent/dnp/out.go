package dnp

import (
	"context"
	"log/slog"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// newest passes slow work (storing on disk, verifying) to the goroutine that does it, and keeps only the newest item. A
// half whose mutex is held for more than a few write periods counts as dead, so no code may wait for the disk or for
// many signatures under it. It has room for one item.
type newest[T any] chan T

// put adds an item in place of an older one. The caller holds the mutex.
func (n newest[T]) put(v T) {
	select {
	case <-n: // drop the older item
	default:
	}
	n <- v
}

// storeOrders is the goroutine that stores the newest orders in a file, and passes on the answer of the disk. A mask or peer list that the
// disk refuses is still in force, and the machine stores it again. A half that restarts before then has no order or an older one. The
// supervisors got no confirmation, so they repeat theirs.
func storeOrders[S any](ctx context.Context, d *dnpHalf, file storage.OrderFile[S], states newest[S], kept func(S, error)) error {
	refused := false // one line for all attempts in a row
	save := func(s S) error {
		err := file.Save(d.Config.StateDir, s)
		switch {
		case err != nil && !refused:
			d.Log.Error("order not stored: until it is, a restart loses it", "err", err)
		case err == nil && refused:
			d.Log.Info("orders are stored again", "file", file.Path(d.Config.StateDir))
		}
		refused = err != nil
		return err
	}
	for {
		select {
		case <-ctx.Done():
			select {
			case s := <-states:
				_ = save(s)
			default:
			}
			return nil
		case s := <-states:
			kept(s, save(s))
		}
	}
}

// openAll is the goroutine that verifies data: up to 64 signatures in a row, which must not delay heartbeats. If an
// item is dropped, a newer one has replaced it.
func openAll(ctx context.Context, judges newest[dnpcore.JudgeData], open func(dnpcore.JudgeData) dnpcore.DataOpened,
	step func(dnpcore.Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-judges:
			step(open(j))
		}
	}
}

// openData verifies the envelopes of a datum. It takes no lock.
func (d *dnpHalf) openData(j dnpcore.JudgeData) dnpcore.DataOpened {
	ev := dnpcore.DataOpened{ID: j.ID}
	for _, b := range j.Envelopes {
		o, err := servicenet.Open(b, d.Verifier)
		c := o.Msg.GetTorusConfiguration()
		if err != nil || c == nil {
			d.Log.Warn("data of the torus refused", "data", j.ID.String(), "err", err)
			return dnpcore.DataOpened{ID: j.ID}
		}
		ev.Parts = append(ev.Parts, c)
	}
	return ev
}

func (d *dnpHalf) seal(s dnpcore.Seal) ([]byte, error) {
	if s.Reports != nil {
		return servicenet.SealReports(s.Reports, s.Status, d.Signer, servicenet.SealOptions{Health: s.Health})
	}
	if s.Order != nil {
		return half.SealOrderStatus(s.Order, d.Signer)
	}
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: s.Answer}}, d.Signer)
}

func (d *dnpHalf) logNotes(now time.Time, notes []dnpcore.Note) {
	d.Doubts.Flush(d.Log, now)
	for _, n := range notes {
		level := slog.LevelInfo
		switch n.Kind {
		case dnpcore.NoteLate, dnpcore.NoteCorrupt:
			d.Doubts.Warn(d.Log, now, n.Text)
			continue
		case dnpcore.NoteSelfTest, dnpcore.NoteUnreadable, dnpcore.NoteSensorStale, dnpcore.NoteOverBudget:
			level = slog.LevelWarn
		case dnpcore.NoteHost:
			if d.core.Verdict() == watchdog.Stale {
				level = slog.LevelWarn
			}
		case dnpcore.NoteSelfTested, dnpcore.NoteRefused, dnpcore.NoteNeighbour:
			level = slog.LevelDebug
		default:
		}
		d.Log.Log(context.Background(), level, n.Text)
	}
}

func (d *dnpHalf) sendFrames(frames []dnpcore.Outgoing) {
	var failed [grid.NumDirections]bool
	for i := range frames {
		o := &frames[i]
		d.testFrame(o)
		l := d.links[o.Dir.Index()]
		if l == nil {
			continue // it could not be opened: see openMissing
		}
		b, err := o.Frame.Append(d.packet[:0], &d.keys[o.Dir.Index()])
		if err == nil {
			for range failpoint.Packet(failpoint.LinkSend, b) {
				err = l.Send(b)
			}
		}
		failed[o.Dir.Index()] = failed[o.Dir.Index()] || err != nil
	}
	for i, dir := range grid.Directions() {
		if failed[i] {
			d.then(dnpcore.Exception{Register: watchdog.AddrChannel(dir), Bits: watchdog.ChannelSend})
		}
	}
}
