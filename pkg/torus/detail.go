package torus

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Detail is a link way by way, as one end sees it. It goes into the register file's extension
// page, so that the host half can say which side is at fault.
type Detail struct {
	Rx, Tx LinkState
	// Silent: the receiving way is broken because nothing authentic came (or, within the
	// hold-off, had not come).
	Silent bool
	// Handshake: the sending way is broken. We hear the peer, but it does not hear us.
	Handshake bool
	// Restarting: the receiving way is sick because the peer's DNP half is restarting, as announced, and its time is
	// not over.
	Restarting bool
	// ExpressDeaf: the link carries heartbeats both ways, and no express broadcasts: the neighbour does not
	// answer their pings (seed 003 §7.2). A link that is otherwise normal is sick then.
	ExpressDeaf bool
	// HeardAge, of a silent link: the time from the last frame (or the start) to the verdict, in
	// whole milliseconds. It does not grow afterwards.
	HeardAge time.Duration
	// Loss, of a link that is not silent: the frames of the window that were lost or damaged, over all,
	// in units of 1/65536 (seed 001 §IV-B).
	Loss uint16
}

// DeafDetail is the detail in reports on a link that is sick only because of ExpressDeaf.
const DeafDetail = "carries heartbeats but no broadcasts"

// LossUnits is the value of Detail.Loss that means all frames.
const LossUnits = 1 << 16

// State returns the state of the whole link: broken when either way is broken, else the state of the receiving way,
// but sick at best when the link is deaf to broadcasts.
func (d Detail) State() LinkState {
	switch {
	case d.Tx == LinkBroken:
		return LinkBroken
	case d.Rx == LinkNormal && d.ExpressDeaf:
		return LinkSick
	}
	return d.Rx
}

// Refused reports whether the link is silent because the peer's kernel refused its frames (see Refused): nothing else
// makes a link silent sooner than c.SilentAfter. HeardAge is in whole milliseconds, rounded down.
func (d Detail) Refused(c LinkConfig) bool {
	return d.Silent && d.HeardAge+time.Millisecond <= c.SilentAfter()
}

// Layout of the detail word. Zero is not a detail: nothing has been written yet.
//
//	bits 0-2  Rx, as LinkState     bit 8   Silent
//	bits 4-6  Tx, as LinkState     bit 9   Handshake
//	                               bit 10  Restarting
//	                               bit 11  ExpressDeaf
//	                               bits 16-31  of a silent link HeardAge in ms, 0xffff for more;
//	                                           of another one Loss
const (
	detailTxShift   = 4
	detailSilent    = 1 << 8
	detailHandshake = 1 << 9
	detailRestart   = 1 << 10
	detailExpress   = 1 << 11
	detailAgeShift  = 16
	detailMask      = 0xffff0f77
)

// Encode returns the detail as a register word.
func (d Detail) Encode() uint32 {
	w := uint32(d.Rx) | uint32(d.Tx)<<detailTxShift
	if d.Silent {
		w |= detailSilent
	}
	if d.Handshake {
		w |= detailHandshake
	}
	if d.Restarting {
		w |= detailRestart
	}
	if d.ExpressDeaf {
		w |= detailExpress
	}
	if !d.Silent {
		return w | uint32(d.Loss)<<detailAgeShift
	}
	ms := min(max(0, d.HeardAge.Milliseconds()), math.MaxUint16)
	return w | uint32(ms)<<detailAgeShift
}

// DecodeDetail reads a register word and refuses one that Encode never makes.
func DecodeDetail(w uint32) (Detail, error) {
	d := Detail{
		Rx:         LinkState(w & 7),
		Tx:         LinkState(w >> detailTxShift & 7),
		Silent:     w&detailSilent != 0,
		Handshake:  w&detailHandshake != 0,
		Restarting: w&detailRestart != 0,

		ExpressDeaf: w&detailExpress != 0,
	}
	if d.Silent {
		d.HeardAge = time.Duration(w>>detailAgeShift) * time.Millisecond
	} else {
		d.Loss = uint16(w >> detailAgeShift)
	}
	switch {
	case !d.Rx.Valid():
		return Detail{}, fmt.Errorf("link detail %#08x: receiving state is %d: want %d to %d", w, uint8(d.Rx), LinkUnknown, LinkBroken)
	case !d.Tx.Valid():
		return Detail{}, fmt.Errorf("link detail %#08x: sending state is %d: want %d to %d", w, uint8(d.Tx), LinkUnknown, LinkBroken)
	case w&^uint32(detailMask) != 0:
		return Detail{}, fmt.Errorf("link detail %#08x: bits outside mask %#08x", w, uint32(detailMask))
	}
	return d, nil
}

// String returns the detail for people: "rx BROKEN tx UNKNOWN silent after 75ms".
func (d Detail) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rx %s tx %s", d.Rx, d.Tx)
	if d.Silent {
		fmt.Fprintf(&b, " silent after %s", d.HeardAge)
	}
	if d.Handshake {
		b.WriteString(" unheard")
	}
	if d.Restarting {
		b.WriteString(" restarting")
	}
	if d.ExpressDeaf {
		b.WriteString(" deaf to broadcasts")
	}
	if d.Loss > 0 {
		fmt.Fprintf(&b, " losing %.2g %%", 100*float64(d.Loss)/LossUnits)
	}
	return b.String()
}
