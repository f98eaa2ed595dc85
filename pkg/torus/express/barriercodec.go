package express

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

const (
	setNews   = 1
	setAnswer = 2

	setHeader = 14
)

// setFrame is the payload of a frame of TypeBarrier.
type setFrame struct {
	kind    byte
	of      Barrier
	members int
	arrived set
	gone    []int
}

func (f *setFrame) encode() []byte {
	b := []byte{f.kind, byte(f.of.Topic)}
	b = binary.BigEndian.AppendUint16(b, uint16(f.members))
	b = binary.BigEndian.AppendUint64(b, f.of.Generation)
	b = append(b, byte(len(f.of.Name)), byte(len(f.gone)))
	b = append(b, f.of.Name...)
	for _, r := range f.gone {
		b = binary.BigEndian.AppendUint16(b, uint16(r))
	}
	for i := range (f.members + 7) / 8 {
		b = append(b, byte(f.arrived[i/8]>>(i%8*8)))
	}
	return b
}

func decodeSet(b []byte) (setFrame, error) {
	if len(b) < setHeader {
		return setFrame{}, fmt.Errorf("set of %d bytes, want at least %d: %w", len(b), setHeader, ErrPayload)
	}
	f := setFrame{kind: b[0], members: int(binary.BigEndian.Uint16(b[2:]))}
	name, gone := int(b[12]), int(b[13])
	switch {
	case f.kind != setNews && f.kind != setAnswer:
		return setFrame{}, fmt.Errorf("set of kind %d, want %d or %d: %w", f.kind, setNews, setAnswer, ErrPayload)
	case b[1] == 0:
		return setFrame{}, fmt.Errorf("set of topic 0, want 1 to 255: %w", ErrPayload)
	case f.members < 1 || f.members > MaxMembers:
		return setFrame{}, fmt.Errorf("set of %d members, want 1 to %d: %w", f.members, MaxMembers, ErrPayload)
	case name < 1 || name > MaxBarrierName:
		return setFrame{}, fmt.Errorf("name of %d bytes, want 1 to %d: %w", name, MaxBarrierName, ErrPayload)
	case gone > MaxGone:
		return setFrame{}, fmt.Errorf("%d members gone, want at most %d: %w", gone, MaxGone, ErrPayload)
	case len(b) != setHeader+name+2*gone+(f.members+7)/8:
		return setFrame{}, fmt.Errorf("set of %d bytes, want %d: %w", len(b), setHeader+name+2*gone+(f.members+7)/8, ErrPayload)
	}
	f.of = Barrier{Topic: Topic(b[1]), Name: string(b[setHeader : setHeader+name]), Generation: binary.BigEndian.Uint64(b[4:])}
	b = b[setHeader+name:]
	last := -1
	for range gone {
		r := int(binary.BigEndian.Uint16(b))
		if r <= last || r >= f.members {
			return setFrame{}, fmt.Errorf("rank %d gone, after %d of %d: %w", r, last, f.members, ErrPayload)
		}
		f.gone, last, b = append(f.gone, r), r, b[2:]
	}
	f.arrived = newSet(f.members)
	for i, v := range b {
		f.arrived[i/8] |= uint64(v) << (i % 8 * 8)
	}
	if over := f.members % 64; over != 0 && f.arrived[len(f.arrived)-1]>>over != 0 {
		return setFrame{}, fmt.Errorf("set has ranks above %d: %w", f.members-1, ErrPayload)
	}
	return f, nil
}

// set is a set of ranks.
type set []uint64

func newSet(members int) set { return make(set, (members+63)/64) }

func fullSet(members int) set {
	s := newSet(members)
	for r := range members {
		s.add(r)
	}
	return s
}

func (s set) has(r int) bool { return s[r/64]>>(r%64)&1 != 0 }
func (s set) add(r int)      { s[r/64] |= 1 << (r % 64) }

func (s set) count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// within reports whether s is a subset of o.
func (s set) within(o set) bool {
	for i, w := range s {
		if w&^o[i] != 0 {
			return false
		}
	}
	return true
}

func (s set) merge(o set) {
	for i, w := range o {
		s[i] |= w
	}
}
