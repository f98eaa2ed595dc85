package engine

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/supervisor/view"
)

// This file keeps the host half's statements about its machine: the end of the last boot, the hardware watchdog, and the last words of
// other machines.

// noteLastBoot publishes how the boot of a machine before the present one ended, once for each boot. It reports whether there is an
// event to commit.
func (t *term) noteLastBoot(now time.Time, d *fault.Delivery, half fault.Half, boot *lofamov1.LastBoot) bool {
	node := d.Report.ID.Origin.Node
	all := t.reported[node]
	was := all[halfOf(half)].boot
	if lacksDetail(was, boot) {
		was = proto.CloneOf(was)
		was.Detail, all[halfOf(half)].boot = boot.GetDetail(), was
		t.reported[node] = all
		t.touch(node)
	}
	if boot.GetBoot() != 0 && boot.GetBoot() == was.GetBoot() && half == fault.HalfHost && d.Report.ID.Origin.Half == fault.HalfHost {
		return t.confirmBoot(d.Report.ID)
	}
	if boot.GetBoot() == 0 || servicenet.LastBootWords(boot) == "" || boot.GetBoot() == was.GetBoot() || boot.GetBoot() == was.GetBefore() {
		return false // published, or the DNP half repeats an older statement
	}
	boot = &lofamov1.LastBoot{End: boot.GetEnd(), Detail: boot.GetDetail(), Boot: boot.GetBoot(), Before: was.GetBoot()}
	if b := t.hostBegan[node]; d.Report.ID.Origin.Half == fault.HalfHost && b.epoch == d.Report.ID.Epoch && !b.at.IsZero() &&
		was.GetBoot() != 0 {
		boot.Heard = timestamppb.New(b.at)
	}
	all[halfOf(half)].boot, all[halfOf(half)].repeatedAt = boot, time.Time{}
	if d.Report.ID.Origin.Half != fault.HalfHost {
		all[halfOf(half)].repeatedAt = now
	}
	if w := all[halfOf(half)].words; w.GetLine() != "" {
		all[halfOf(half)].words = &lofamov1.LastWords{Serial: w.GetSerial(), ReceivedBy: w.GetReceivedBy(), Time: w.GetTime(),
			Witnesses: w.GetWitnesses()} // their statements of the same packets are no news either
	}
	t.reported[node] = all
	t.touch(node)
	t.change(timedChange{recovered: &recovered{node: node, half: half, boot: boot, was: t.halfState(node, half), path: d.Path,
		by: d.Report.ID.Origin}, at: now})
	return true
}

// lacksDetail reports whether the first statement of a boot had no room for the detail that a later one has.
func lacksDetail(was, is *lofamov1.LastBoot) bool {
	return is.GetBoot() != 0 && is.GetBoot() == was.GetBoot() && is.GetEnd() == was.GetEnd() && was.GetDetail() == "" && is.GetDetail() != ""
}

// confirmWithin is the time from the DNP half's statement of a boot to the host half's first message in it.
const confirmWithin = 30 * time.Second

// confirmBoot handles the host half's first statement of a boot that the DNP half has repeated before. Only the host half proves the
// boot. A later restart of the agent in the same boot is no other boot: so the boot counts from the earlier of the two statements, and
// only if both came soon after each other. It reports whether there is something to commit.
func (t *term) confirmBoot(id fault.ReportID) bool {
	node := id.Origin.Node
	all := t.reported[node]
	h := &all[halfOf(fault.HalfHost)]
	repeated, b := h.repeatedAt, t.hostBegan[node]
	if repeated.IsZero() {
		return false
	}
	h.repeatedAt = time.Time{}
	proven := h.boot.GetBefore() != 0 && b.epoch == id.Epoch && !b.at.IsZero() && b.at.Before(repeated.Add(confirmWithin))
	if proven {
		h.boot = proto.CloneOf(h.boot)
		if repeated.Before(b.at) {
			b.at = repeated
		}
		h.boot.Heard = timestamppb.New(b.at)
		t.touch(node)
	}
	t.reported[node] = all
	return proven
}

// noteWatchdog keeps the newest statement on a node's hardware watchdog. It reports whether there is something to commit.
func (t *term) noteWatchdog(now time.Time, d *fault.Delivery, h *lofamov1.HalfHealth) bool {
	is, ok := t.watchdogs.Digest(now, d.Report.ID, h)
	return ok && t.setWatchdog(now, d.Report.ID.Origin.Node, is)
}

// stopsWatchdog takes a node's statement back at a clean stop, at an announced restart of its host half, and at a boot. When an
// announcement is over, the next full digest states it again: one that repeats an earlier digest is requested in full.
func (t *term) stopsWatchdog(now time.Time, rep *fault.Report) {
	if !t.committed.Has(rep.ID.Origin.Node) {
		return
	}
	gone, over := t.watchdogs.Report(now, rep)
	if gone {
		t.setWatchdog(now, rep.ID.Origin.Node, nil)
	}
	if over {
		delete(t.words, rep.ID.Origin)
	}
}

func (t *term) setWatchdog(now time.Time, node fault.NodeID, is *lofamov1.HardwareWatchdog) bool {
	all := t.reported[node]
	host := &all[halfOf(fault.HalfHost)]
	is = view.StatedWatchdog(host.watchdog, is, now)
	if is == host.watchdog {
		return false
	}
	host.watchdog = is
	t.reported[node] = all
	t.touch(node)
	return true
}

// wordsAgain is the least time between two last words of a machine, unless the newer ones tell of a graver error. Anybody who can forge
// the machine's address can write them. Within wordsSame, another receiver's same line is about the same packets: a receiver accepts one
// error a minute from each sender.
const (
	wordsAgain = 10 * time.Second
	wordsSame  = time.Minute
)

// maxWitnesses limits the further receivers of last words that are kept.
const maxWitnesses = 3

// wordsNews says what last words add to those that are known of a machine.
type wordsNews uint8

const (
	wordsNew       wordsNews = iota + 1 // another error
	wordsWitnessed                      // another receiver of the same packets
	wordsKnown                          // nothing, or they come too soon
)

// compareWords compares the last words that a receiver states with those that are known, which came that long ago.
func compareWords(was, w *lofamov1.LastWords, by string, ago time.Duration) wordsNews {
	if was == nil {
		return wordsNew
	}
	stated := was.GetReceivedBy() == by
	if stated && was.GetSerial() == w.GetSerial() {
		return wordsKnown // an earlier leader has published them
	}
	for _, o := range was.GetWitnesses() {
		if o.GetReceivedBy() != by {
			continue
		}
		if stated = true; o.GetSerial() == w.GetSerial() {
			return wordsKnown
		}
	}
	switch {
	case was.GetLine() == "": // the machine has booted since
		return wordsNew
	case !stated && was.GetLine() == w.GetLine() && ago < wordsSame:
		if len(was.GetWitnesses()) < maxWitnesses {
			return wordsWitnessed
		}
		return wordsKnown
	case ago < wordsAgain && !graver(w, was):
		return wordsKnown
	}
	return wordsNew
}

// noteLastWords publishes the last words of other machines' kernels that a half has received, each once: a host half those of any node,
// a DNP half those of its host. They change no state. It reports whether there is an event to commit.
func (t *term) noteLastWords(now, arrived time.Time, d *fault.Delivery, half fault.Half, words []*lofamov1.LastWords) (changed bool) {
	by := d.Report.ID.Origin
	if half != by.Half {
		return false
	}
	before := t.wordsOf[by]
	var restated [servicenet.MaxLastWords]wordsID
	for i, w := range words[:min(len(words), len(restated))] {
		node := fault.NodeID(w.GetNode())
		if w.GetSerial() == 0 || w.GetLine() == "" || !t.committed.Has(node) || by.Half == fault.HalfDNP && node != by.Node {
			continue
		}
		restated[i] = wordsID{node, w.GetSerial()}
		if slices.Contains(before[:], restated[i]) {
			continue
		}
		all := t.reported[node]
		was := all[0].words
		switch compareWords(was, w, by.String(), now.Sub(all[0].wordsAt)) {
		case wordsKnown:
			continue
		case wordsWitnessed:
			was = proto.CloneOf(was)
			was.Witnesses = append(was.Witnesses, &lofamov1.WordsWitness{ReceivedBy: by.String(), Serial: w.GetSerial()})
			all[0].words = was
			t.reported[node] = all
			t.touch(node)
			changed = true
			continue
		case wordsNew:
		}
		w = proto.CloneOf(w)
		age := time.Duration(w.GetAgeMs())*time.Millisecond + onTheWay(now, arrived, d)
		w.ReceivedBy, w.Time, w.Witnesses, w.AgeMs = by.String(), timestamppb.New(now.Add(-age)), nil, 0
		all[0].words, all[0].wordsAt = w, now
		t.reported[node] = all
		t.touch(node)
		t.change(timedChange{recovered: &recovered{node: node, half: fault.HalfHost, last: w, was: t.halfState(node, fault.HalfHost),
			path: d.Path, by: by}, at: now})
		changed = true
	}
	if len(words) > 0 {
		t.wordsOf[by] = restated
	}
	return changed
}

// wordsID identifies last words among those of one receiver.
type wordsID struct {
	node   fault.NodeID
	serial uint32
}

// graver reports whether w is about a panic and was is not.
func graver(w, was *lofamov1.LastWords) bool {
	return w.GetEnd() == lofamov1.BootEnd_BOOT_PANIC && was.GetEnd() != lofamov1.BootEnd_BOOT_PANIC && was.GetLine() != ""
}

// hostBegin is when a host half's newest epoch was first heard.
type hostBegin struct {
	epoch fault.Epoch
	at    time.Time // zero: an earlier leader may have heard it before
}

// noteHostEpoch records when a host half's newer epoch is first heard.
func (t *term) noteHostEpoch(arrived time.Time, id fault.ReportID) {
	node := id.Origin.Node
	if id.Origin.Half != fault.HalfHost || t.hostBegan[node].epoch >= id.Epoch {
		return
	}
	e, ok := t.committed.At(node)
	if !ok {
		return // not in this torus
	}
	b := hostBegin{epoch: id.Epoch}
	if was := max(e.Status.HostEpoch, t.hostBegan[node].epoch); was != 0 && was < id.Epoch {
		b.at = arrived
	}
	t.hostBegan[node] = b
}

// noteTrace keeps the traces of the death of a node's machine in a batch. Most nodes have no trace.
func (t *term) noteTrace(b *batch, st awareness.NodeStatus) {
	trace := t.traceOf(st)
	if none := trace.Zero(); !none || t.traced[st.ID] {
		b.traces[st.ID] = trace
		if t.traced[st.ID] = true; none {
			delete(t.traced, st.ID)
		}
	}
}

// traceOf returns the traces of the death of a node's machine, and judges its kernels.
func (t *term) traceOf(st awareness.NodeStatus) awareness.MachineTrace {
	host := t.reported[st.ID][halfOf(fault.HalfHost)]
	var out awareness.MachineTrace
	if b := host.boot; b.GetHeard() != nil {
		out.Facts.Booted, out.LastBoot = b.GetHeard().AsTime(), servicenet.LastBootWords(b)
	}
	if w := host.words; w.GetLine() != "" {
		out.Words, out.WordsAt = servicenet.LastWordsText(w), w.GetTime().AsTime()
		if w.GetEnd() == lofamov1.BootEnd_BOOT_PANIC {
			out.Facts.Panic = out.WordsAt
			for _, by := range append([]*lofamov1.WordsWitness{{ReceivedBy: w.GetReceivedBy()}}, w.GetWitnesses()...) {
				out.Facts.Receivers = append(out.Facts.Receivers, by.GetReceivedBy())
			}
		}
	}
	out.Facts.GivenUp = host.givenUp && t.reported[st.ID][halfOf(fault.HalfDNP)].givenUp
	was, _ := t.committed.At(st.ID)
	for i, h := range [...]fault.Half{fault.HalfHost, fault.HalfDNP} {
		facts := out.Facts
		if awareness.SameFault(was.Status, st, h) {
			facts.Was = was.Kernels[i]
		}
		out.Kernels[i] = awareness.JudgeKernel(st, h, facts)
	}
	return out
}
