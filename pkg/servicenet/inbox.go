package servicenet

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
)

// MaxEpoch is the highest boot epoch accepted: beyond it nothing is left for the starts to come.
const MaxEpoch fault.Epoch = 1 << 62

// MaxEpochJump bounds how far one start may raise the boot epoch of a known origin. A half that restarts every second
// without reaching a supervisor needs twelve days for that.
const MaxEpochJump = 1 << 20

// EpochSupersedes reports whether a message of boot epoch e shows that its half has left the known epoch. No start raises the epoch by more
// than MaxEpochJump. If the known epoch is further ahead of e, one of its bits flipped in the half's memory, and STALE_EPOCH moved the half
// back.
func EpochSupersedes(e, known fault.Epoch) bool { return e > known || known-e > MaxEpochJump }

// Verdict is an inbox' verdict on a report's id.
type Verdict uint8

// The verdicts.
const (
	Fresh      Verdict = iota + 1 // never seen: take it
	Duplicate                     // seen before: acknowledge again, nothing else
	StaleEpoch                    // too far below the origin's highest epoch: answer STALE_EPOCH with Position(origin).Epoch
	EpochJump                     // further ahead than MaxEpochJump, or over MaxEpoch: answer as if it were stale, and count
)

var verdictNames = [...]string{"", "FRESH", "DUPLICATE", "STALE_EPOCH", "EPOCH_JUMP"}

func (v Verdict) String() string {
	if v == 0 || int(v) >= len(verdictNames) {
		return fmt.Sprintf("Verdict(%d)", uint8(v))
	}
	return verdictNames[v]
}

const (
	// WindowWords is the size of an inbox window in words of 64 sequence numbers.
	WindowWords = 4
	// WindowBits is its size in sequence numbers. An outbox never sends a report that is so far ahead of an older one
	// in its log. Therefore everything below the window counts as a duplicate without losing a report.
	WindowBits = 64 * WindowWords
)

// InboxPosition is an inbox' record of one origin. It is a plain value that goes to the store, as JSON or otherwise,
// in the very transaction that commits the reports it covers.
type InboxPosition struct {
	Origin  fault.Origin
	Epoch   fault.Epoch
	Highest fault.Seq           // of the reports that are no digests; 0: none in this epoch
	Window  [WindowWords]uint64 // bit i, of word i/64 bit i%64: Highest-i was seen
	Digest  fault.Seq           // the newest digest; 0: none in this epoch
	// Earlier are the windows of the epochs before: the first of Epoch-1.
	Earlier [EarlierEpochs]InboxWindow
}

// EarlierEpochs is of how many epochs below the newest an origin's reports are still taken: those that
// a half kept on disk over so many restarts.
const EarlierEpochs = 3

// InboxWindow is an inbox' record of one epoch of an origin.
type InboxWindow struct {
	Highest fault.Seq
	Window  [WindowWords]uint64
}

// Inbox remembers received reports, so that each is accepted once. Its memory is bounded by the number of origins,
// which only certificates can add to. Accept also remembers: store the position of an origin only together with every
// report that was found Fresh, or a crash loses reports that were accepted and not committed.
type Inbox struct {
	origins map[fault.Origin]*InboxPosition
}

// NewInbox returns an inbox that resumes from saved positions; of two for one origin the one with the higher epoch
// counts.
func NewInbox(saved []InboxPosition) *Inbox {
	i := &Inbox{origins: make(map[fault.Origin]*InboxPosition, len(saved))}
	for _, p := range saved {
		if old, ok := i.origins[p.Origin]; !ok || old.Epoch < p.Epoch {
			i.origins[p.Origin] = &p
		}
	}
	return i
}

// Accept judges the id of a report, and remembers it.
//
// Only a digest newer than the newest is Fresh, since an older one has nothing to add. One of an earlier epoch is
// always StaleEpoch: no half keeps digests over a restart, so such a digest reveals a half whose epoch went back.
// Digests do not move the window of the reports: a report waits for its commit while hundreds of digests pass.
func (i *Inbox) Accept(id fault.ReportID, digest bool) Verdict {
	p, verdict := i.epoch(id, digest)
	switch {
	case verdict != Fresh:
		return verdict
	case digest && id.Seq <= p.Digest:
		return Duplicate
	case digest:
		p.Digest = id.Seq
		return Fresh
	case id.Epoch < p.Epoch:
		w := &p.Earlier[p.Epoch-id.Epoch-1]
		return acceptSeq(&w.Highest, &w.Window, id.Seq)
	}
	return acceptSeq(&p.Highest, &p.Window, id.Seq)
}

// acceptSeq judges a number by the window of its epoch, and remembers it there.
func acceptSeq(highest *fault.Seq, w *[WindowWords]uint64, seq fault.Seq) Verdict {
	if seq > *highest {
		*w = shiftWindow(*w, uint64(seq-*highest))
		*highest = seq
		w[0] |= 1
		return Fresh
	}
	back := uint64(*highest - seq)
	if back >= WindowBits || w[back/64]&(1<<(back%64)) != 0 {
		return Duplicate
	}
	w[back/64] |= 1 << (back % 64)
	return Fresh
}

// epoch judges the epoch. If it is Fresh the position has a window for that epoch.
func (i *Inbox) epoch(id fault.ReportID, digest bool) (*InboxPosition, Verdict) {
	p, ok := i.origins[id.Origin]
	switch {
	case ok && id.Epoch < p.Epoch && (digest || p.Epoch-id.Epoch > EarlierEpochs):
		return p, StaleEpoch
	case id.Epoch > MaxEpoch, ok && id.Epoch > p.Epoch && id.Epoch-p.Epoch > MaxEpochJump:
		return p, EpochJump
	case !ok:
		p = &InboxPosition{Origin: id.Origin, Epoch: id.Epoch}
		i.origins[id.Origin] = p
	case id.Epoch > p.Epoch:
		p.becomeEpoch(id.Epoch)
	}
	return p, Fresh
}

// becomeEpoch opens the window of a higher epoch and moves those of the others down.
func (p *InboxPosition) becomeEpoch(epoch fault.Epoch) {
	old := *p
	*p = InboxPosition{Origin: old.Origin, Epoch: epoch}
	down := uint64(epoch - old.Epoch)
	if down > EarlierEpochs {
		return
	}
	p.Earlier[down-1] = InboxWindow{old.Highest, old.Window}
	copy(p.Earlier[down:], old.Earlier[:])
}

// Position returns the known position of an origin; its Epoch is 0 for an unknown origin.
func (i *Inbox) Position(o fault.Origin) InboxPosition {
	if p, ok := i.origins[o]; ok {
		return *p
	}
	return InboxPosition{Origin: o}
}

// Knows reports whether it has accepted a report of either half of a node.
func (i *Inbox) Knows(id fault.NodeID) bool {
	return i.origins[fault.Origin{Node: id, Half: fault.HalfHost}] != nil || i.origins[fault.Origin{Node: id, Half: fault.HalfDNP}] != nil
}

// Forget drops the position of an origin that is gone.
func (i *Inbox) Forget(o fault.Origin) { delete(i.origins, o) }

// shiftWindow moves every bit n places up; bits that leave the window are forgotten.
func shiftWindow(w [WindowWords]uint64, n uint64) [WindowWords]uint64 {
	var out [WindowWords]uint64
	if n >= WindowBits {
		return out
	}
	words, bits := int(n/64), n%64
	for i := WindowWords - 1; i >= words; i-- {
		out[i] = w[i-words] << bits
		if bits > 0 && i-words > 0 {
			out[i] |= w[i-words-1] >> (64 - bits)
		}
	}
	return out
}
