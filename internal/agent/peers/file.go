package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The file holds a magic (4 bytes), the length of the next field (2), a PeerOrder without node (protobuf), and
// CRC-32C over all earlier bytes (4). Numbers are big endian.
const (
	magic      = "LPE1"
	headerSize = len(magic) + 2
	trailer    = 4
	// MaxSize of a file, in bytes: six peers with names of 64 bytes and addresses of 64, a coordinate, and a torus of at
	// most 1,024 bytes, with room to spare.
	MaxSize = 4096
)

// ErrState is wrapped by Decode's refusals.
var ErrState = errors.New("not a stored order of peers")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends the file's content to b.
func (s State) Append(b []byte) ([]byte, error) {
	from := len(b)
	o := &lofamov1.PeerOrder{Number: s.Number, Coord: s.Place(), Peers: Proto(s.Peers)}
	if s.Torus != (grid.Dims{}) {
		o.Torus, _ = s.Torus.AppendBinary(nil) // never fails
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		return b, fmt.Errorf("peers: %w", err)
	}
	if n := headerSize + len(body) + trailer; n > MaxSize {
		return b, fmt.Errorf("peers: %d bytes: want at most %d", n, MaxSize)
	}
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	b = append(b, body...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli)), nil
}

// Decode reads what Append has written, and nothing else.
func Decode(b []byte) (State, error) {
	bad := func(format string, args ...any) (State, error) {
		return State{}, fmt.Errorf("%w: %s", ErrState, fmt.Sprintf(format, args...))
	}
	if len(b) < headerSize+trailer || len(b) > MaxSize {
		return bad("%d bytes: want %d to %d", len(b), headerSize+trailer, MaxSize)
	}
	if string(b[:len(magic)]) != magic {
		return bad("begins with %q: want %q", b[:len(magic)], magic)
	}
	if n := int(binary.BigEndian.Uint16(b[len(magic):])); n != len(b)-headerSize-trailer {
		return bad("length: given %d: want %d", n, len(b)-headerSize-trailer)
	}
	body, sum := b[headerSize:len(b)-trailer], binary.BigEndian.Uint32(b[len(b)-trailer:])
	if crc32.Checksum(b[:len(b)-trailer], castagnoli) != sum {
		return bad("checksum 0x%08x is wrong", sum)
	}
	o := new(lofamov1.PeerOrder)
	if err := proto.Unmarshal(body, o); err != nil {
		return bad("%v", err)
	}
	if len(o.GetPeers()) > grid.NumDirections {
		return bad("peers: given %d: want at most %d", len(o.GetPeers()), grid.NumDirections)
	}
	s, err := FromOrder(o)
	if err != nil {
		return bad("%v", err)
	}
	return s, nil
}
