package dnpcore

import (
	"encoding/binary"

	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// The layout of a slot in the copy, big endian. The message is in the encoding of halfcore.Relay, with the hops before
// this one.
//
//	0    1     direction by which the message arrived, 0: none
//	1    4     stream by which it arrived, 0: none
//	5    8     number
//	13   6·8   its numbers on the links X+ X- Y+ Y- Z+ Z-, 0: not in flight there
//	61         the message
const slotHeader = 1 + 4 + 8 + grid.NumDirections*8

// MaxKept bounds the stored size of a message.
const MaxKept = slotHeader + halfcore.MaxRelaySize

func (s *slot) encode() ([]byte, error) {
	dst := append(make([]byte, 0, slotHeader+len(s.msg.Envelope)), byte(s.from))
	dst = binary.BigEndian.AppendUint32(dst, s.stream)
	dst = binary.BigEndian.AppendUint64(dst, s.number)
	for _, n := range s.wait {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return s.msg.Append(dst)
}

// decodeSlot reads the output of encode, and reports whether it is valid. The result does not alias b.
func decodeSlot(b []byte) (slot, bool) {
	if len(b) < slotHeader {
		return slot{}, false
	}
	s := slot{from: grid.Direction(b[0]), stream: binary.BigEndian.Uint32(b[1:]), number: binary.BigEndian.Uint64(b[5:])}
	for i := range s.wait {
		s.wait[i] = binary.BigEndian.Uint64(b[13+8*i:])
	}
	msg, err := halfcore.DecodeRelay(b[slotHeader:])
	if err != nil || s.from != 0 && !s.from.Valid() {
		return slot{}, false
	}
	msg.Envelope = append([]byte(nil), msg.Envelope...)
	s.msg = msg
	return s, true
}
