package servicenet

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Verdict is what an inbox says of a report's id.
type Verdict uint8

// The verdicts.
const (
	Fresh      Verdict = iota + 1 // never seen: take it
	Duplicate                     // seen before: acknowledge again, nothing else
	StaleEpoch                    // below the origin's highest epoch: answer STALE_EPOCH with Position(origin).Epoch
	EpochJump                     // further ahead than MaxEpochJump: refuse and count
)

var verdictNames = [...]string{"", "FRESH", "DUPLICATE", "STALE_EPOCH", "EPOCH_JUMP"}

func (v Verdict) String() string {
	if v == 0 || int(v) >= len(verdictNames) {
		return fmt.Sprintf("Verdict(%d)", uint8(v))
	}
	return verdictNames[v]
}

// WindowWords is the size of an inbox window, in words of 64 sequence numbers.
const WindowWords = 4

// InboxPosition is what an inbox knows of one origin; it is stored with the commit, as JSON if wanted.
type InboxPosition struct {
	Origin  fault.Origin
	Epoch   fault.Epoch
	Highest fault.Seq           // of the reports; 0: none in this epoch
	Window  [WindowWords]uint64 // bit i of the whole: Highest-i was seen
	Digest  fault.Seq           // newest digest
}

// Inbox drops duplicates.
type Inbox struct{}

// NewInbox returns an inbox that goes on from saved positions.
func NewInbox(saved []InboxPosition) *Inbox { panic("skeleton") }

// Accept judges the id of a report that is NOT a digest and remembers it.
func (i *Inbox) Accept(id fault.ReportID) Verdict { panic("skeleton") }

// AcceptDigest judges the id of a digest: only one newer than the newest is Fresh.
func (i *Inbox) AcceptDigest(id fault.ReportID) Verdict { panic("skeleton") }

// Position returns what is known of an origin; zero Epoch when nothing is.
func (i *Inbox) Position(o fault.Origin) InboxPosition { panic("skeleton") }

// Positions returns all positions in the order of their origins.
func (i *Inbox) Positions() []InboxPosition { panic("skeleton") }
