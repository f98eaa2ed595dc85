package view

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Watchdogs decides which statement on a node's hardware watchdog is the newest, and when a node takes its statement back. One
// leader's term has one. It depends only on its inputs: the simulator uses it for its leaders too. It is not safe for concurrent use.
//
// Responses wait for the reset of a node that stated an armed device. So an outdated statement is worse than none.
type Watchdogs struct {
	by      map[fault.NodeID]fault.ReportID // the host half's digest that last described the device
	stopped map[fault.NodeID]announced
	notices map[fault.NodeID]fault.ReportID // the newest notice of a stop or a restart that was processed
}

// announced is a stop of a node or a restart of its host half that is not over. Meanwhile the daemon may disarm the device.
type announced struct {
	epoch fault.Epoch // of the host half
	until time.Time   // when it counts as over although the node has not said so; zero: never
}

// unended is the time after a restart's announced end until the restart counts as over, even if the node has not reported the end. Until
// then a paused daemon may still resume and disarm the device. After a longer pause it cannot: it did not feed the device, whose timeout is
// at most 5 min, so the machine has reset.
const unended = 10 * time.Minute

// NewWatchdogs returns the state at the start of a term.
func NewWatchdogs() *Watchdogs {
	return &Watchdogs{by: make(map[fault.NodeID]fault.ReportID), stopped: make(map[fault.NodeID]announced),
		notices: make(map[fault.NodeID]fault.ReportID)}
}

// Restore notes a statement that an earlier leader has committed. The host half had this epoch by then.
func (w *Watchdogs) Restore(node fault.NodeID, is *lofamov1.HardwareWatchdog, epoch fault.Epoch) {
	if is != nil {
		w.by[node] = fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: epoch}
	}
}

// Digest processes a digest. h describes the host half; nil: the digest does not. ok reports that the node's statement from now on is
// the returned one, where nil is none.
//
// Only the host half's own digests count, in the order in which the half made them: the DNP half may repeat an older statement. A
// digest that describes the host half without a watchdog takes the statement back, as agents of earlier versions do. So does one of a
// newer boot epoch that does not describe it.
func (w *Watchdogs) Digest(now time.Time, id fault.ReportID, h *lofamov1.HalfHealth) (is *lofamov1.HardwareWatchdog, ok bool) {
	node := id.Origin.Node
	if id.Origin.Half != fault.HalfHost {
		return nil, false
	}
	by, known := w.by[node]
	switch {
	case known && (id.Epoch < by.Epoch || id.Epoch == by.Epoch && id.Seq < by.Seq):
		return nil, false // delayed in transit
	case h == nil:
		return nil, w.newBoot(id)
	}
	w.by[node] = id
	w.RunOut(now, node)
	if a, ok := w.stopped[node]; ok && id.Epoch <= a.epoch && h.GetHardwareWatchdog().GetArmed() {
		return nil, false // made before the daemon disarmed the device
	}
	return h.GetHardwareWatchdog(), true
}

// RestoreStop notes an announced stop of the node that an earlier leader has committed. epoch is the host half's.
func (w *Watchdogs) RestoreStop(node fault.NodeID, epoch fault.Epoch) {
	w.restore(node, announced{epoch: epoch})
}

// RestoreRestart is RestoreStop for a restart of the node's host half. now is the time of the restoration.
func (w *Watchdogs) RestoreRestart(now time.Time, node fault.NodeID, epoch fault.Epoch) {
	w.restore(node, announced{epoch, now.Add(fault.MaxRestart + unended)})
}

func (w *Watchdogs) restore(node fault.NodeID, a announced) {
	w.stopped[node] = a
	w.notices[node] = fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: a.epoch}
}

// Report processes any other report. gone reports that the node has no statement from now on. That is so when the node announces a
// clean stop or a restart of its host half, because its daemon may disarm the device then, and when its host half reports with a newer
// epoch, because the machine may have booted since. over reports that the announcement has ended: the next full digest states the
// device again. Notices count in the order in which the half made them: a half resends them, and keeps them over a boot.
func (w *Watchdogs) Report(now time.Time, rep *fault.Report) (gone, over bool) {
	id := rep.ID
	restarts := rep.Restart.Half == fault.HalfHost
	if id.Origin.Half == fault.HalfHost && (rep.Stop != 0 || restarts) {
		n := id.Origin.Node
		was := w.notices[n]
		if id.Epoch < max(was.Epoch, w.by[n].Epoch) || id.Epoch == was.Epoch && id.Seq < was.Seq {
			return false, false // delayed, or kept over a boot
		}
		w.notices[n] = id
	}
	switch {
	case id.Origin.Half != fault.HalfHost:
		return false, false
	case rep.Stop.Begins():
		w.stopped[id.Origin.Node] = announced{epoch: id.Epoch}
		return true, false
	case restarts && rep.Restart.Within > 0:
		if a, ok := w.stopped[id.Origin.Node]; !ok || a.epoch < id.Epoch || !a.until.IsZero() { // a stop goes on during a restart
			w.stopped[id.Origin.Node] = announced{id.Epoch, now.Add(min(rep.Restart.Within, fault.MaxRestart) + unended)}
		}
		return true, false
	case rep.Stop != 0, restarts:
		a, ok := w.stopped[id.Origin.Node]
		if over = ok && (rep.Stop != 0 || !a.until.IsZero()); over { // the end of a restart ends no stop
			delete(w.stopped, id.Origin.Node)
		}
	}
	return w.newBoot(id), over
}

// RunOut ends a restart of the host half whose end the node has not reported in time. It returns true once; the next full digest then
// states the device again.
func (w *Watchdogs) RunOut(now time.Time, node fault.NodeID) bool {
	if a := w.stopped[node]; a.until.IsZero() || now.Before(a.until) {
		return false
	}
	delete(w.stopped, node)
	return true
}

// newBoot notes the first message of a host half in a newer epoch, and reports whether this is it.
func (w *Watchdogs) newBoot(id fault.ReportID) bool {
	by, known := w.by[id.Origin.Node]
	if !known || id.Epoch <= by.Epoch {
		return false
	}
	w.by[id.Origin.Node] = id
	return true
}

// Forget drops a node that has left.
func (w *Watchdogs) Forget(node fault.NodeID) {
	delete(w.by, node)
	delete(w.stopped, node)
	delete(w.notices, node)
}

// StatedWatchdog returns a node's statement for its document, as of now. It returns was if that says the same.
func StatedWatchdog(was, is *lofamov1.HardwareWatchdog, now time.Time) *lofamov1.HardwareWatchdog {
	switch {
	case is == nil:
		return nil
	case was != nil && was.GetArmed() == is.GetArmed() && was.GetTimeoutMs() == is.GetTimeoutMs() &&
		was.GetContactWithinMs() == is.GetContactWithinMs() && was.GetBoot() == is.GetBoot():
		return was
	}
	return &lofamov1.HardwareWatchdog{Armed: is.GetArmed(), TimeoutMs: is.GetTimeoutMs(), ContactWithinMs: is.GetContactWithinMs(),
		Boot: is.GetBoot(), Since: timestamppb.New(now)}
}
