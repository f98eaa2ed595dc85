package routing

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A message that does not fit into one frame goes in pieces, each a message of its own for the nodes on the way. They
// may take different ways and overtake each other, so each names its message (seed 003 §5.2.1.3):
//
//	offset  size
//	     0     1  0xC5; an Envelope begins with 0x0A, a chunk packet of bulk with 0xB1
//	     1     1  version, 1
//	     2    16  name of the message: the first bytes of its SHA-256
//	    18     6  origin x, y, z, 16 bits each, big endian
//	    24     1  index, from 0
//	    25     1  n, how many there are: 2 to MaxPieces
//	    26        1 to PieceSize bytes of the message; PieceSize in all but the last where frames are as long as usual
const (
	MaxPiece  = 1200 // bytes, the limit of a relay
	pieceHead = 26
	PieceSize = MaxPiece - pieceHead
	// MinPiece is the shortest piece size that may be requested.
	MinPiece   = 2 * pieceHead
	MaxPieces  = 32
	MaxMessage = MaxPieces * PieceSize // bytes, 37,568

	pieceMark    = 0xc5
	pieceVersion = 1
)

// MessageID names a message of several pieces by its content.
type MessageID [16]byte

// ErrPiece refuses bytes that are no piece, or a malformed piece.
var ErrPiece = errors.New("piece of a message makes no sense")

// IsPiece tells a piece from an envelope or a chunk packet.
func IsPiece(b []byte) bool { return len(b) > 0 && b[0] == pieceMark }

// Split cuts a message of origin into pieces of at most longest bytes each, MinPiece to MaxPiece: the room for a
// message in a frame. The message must be longer than that, and no longer than MaxPieces pieces take: MaxMessage
// where frames have the usual length.
func Split(origin grid.Coord, message []byte, longest int) ([][]byte, error) {
	if longest < MinPiece || longest > MaxPiece {
		return nil, fmt.Errorf("split a message into pieces of %d bytes: want %d to %d", longest, MinPiece, MaxPiece)
	}
	size := longest - pieceHead
	if len(message) <= longest || len(message) > MaxPieces*size {
		return nil, fmt.Errorf("split a message of %d bytes: want %d to %d", len(message), longest+1, MaxPieces*size)
	}
	sum := sha256.Sum256(message)
	n := (len(message) + size - 1) / size
	out := make([][]byte, 0, n)
	for data := range slices.Chunk(message, size) {
		b := make([]byte, 0, pieceHead+len(data))
		b = append(b, pieceMark, pieceVersion)
		b = append(b, sum[:len(MessageID{})]...)
		for _, v := range [...]int{origin.X, origin.Y, origin.Z} {
			b = binary.BigEndian.AppendUint16(b, uint16(v))
		}
		b = append(b, byte(len(out)), byte(n))
		out = append(out, append(b, data...))
	}
	return out, nil
}

type piece struct {
	id     MessageID
	origin grid.Coord
	index  int
	count  int
	data   []byte // of the packet
}

func decodePiece(b []byte) (piece, error) {
	if len(b) <= pieceHead || len(b) > MaxPiece || b[0] != pieceMark || b[1] != pieceVersion {
		return piece{}, fmt.Errorf("%d bytes: %w", len(b), ErrPiece)
	}
	at := func(i int) int { return int(binary.BigEndian.Uint16(b[i:])) }
	p := piece{id: MessageID(b[2:18]), origin: grid.Coord{X: at(18), Y: at(20), Z: at(22)}, index: int(b[24]), count: int(b[25]),
		data: b[pieceHead:]}
	if p.count < 2 || p.count > MaxPieces || p.index >= p.count {
		return piece{}, fmt.Errorf("piece %d of %d, want 0 to n-1 of 2 to %d: %w", p.index, p.count, MaxPieces, ErrPiece)
	}
	return p, nil
}

// Bounds of a Reorder.
const (
	// MaxReorder bounds the incomplete messages, and maxOfOrigin those of one node that began at the same link, so that no neighbour
	// can displace messages of other links. The thesis' network interface has room for 16 too.
	MaxReorder  = 16
	maxOfOrigin = 4
	// MissingAfter is how long after its first piece a message may be incomplete. If necessary a piece is tried for 5
	// s at every hop of its way, but it hardly ever takes longer than a few round trips.
	MissingAfter = 2 * time.Second
	// remembered is how long a completed message is remembered, so that copies of its pieces begin nothing. Then it
	// may be repeated.
	remembered = 250 * time.Millisecond
)

// Missing says that a message was given up incomplete: evidence that a node on the way drops messages, or is far too
// slow (seed 003 §5.2.1.3: "the detection of a missing packet can be used to trigger an error-detected eureka
// signal").
type Missing struct {
	ID     MessageID
	Origin grid.Coord
	Have   int // pieces that came
	Want   int
	After  time.Duration // since the first of them
	// Altered: all pieces came, but the message does not match its name; one of them was changed on the way, or
	// forged.
	Altered bool
}

// String says it in words.
func (m Missing) String() string {
	if m.Altered {
		return fmt.Sprintf("a message of %d pieces from %s was altered on the way", m.Want, m.Origin)
	}
	return fmt.Sprintf("%d of %d pieces of a message from %s are missing after %s", m.Want-m.Have, m.Want, m.Origin,
		m.After.Round(time.Millisecond))
}

// ReorderStats counts the outcomes of pieces.
type ReorderStats struct {
	Whole      uint64 // messages
	Duplicates uint64 // pieces that had come before
	Missing    uint64 // messages given up
	Altered    uint64 // messages
	Refused    uint64 // pieces that made no sense
}

// Reorder is the reordering buffer of the thesis. It reassembles messages from pieces that come in any order, drops
// duplicates, and reports missing pieces after a while. It never requests any: the sender of the message repeats it.
//
// Its memory is bounded by MaxReorder messages of MaxMessage bytes. A new message displaces another one in two cases. If its origin already
// has maxOfOrigin messages from the same link, Reorder gives up the oldest one. Otherwise, if MaxReorder messages are open, Reorder
// picks the link with the most messages, then the origin with the most messages from that link, and gives up its oldest message. It reports
// that message missing, as the thesis does: "an overflow of the buffer indicates that a packet is late". A neighbour can forge origins, but
// not the link, so it displaces only messages that came through itself. Reorder belongs to one goroutine. The zero value is ready.
type Reorder struct {
	open  []incomplete // oldest first
	done  []complete   // oldest first, at most MaxReorder
	stats ReorderStats
}

type incomplete struct {
	from   grid.Direction // the link of its first piece
	id     MessageID
	origin grid.Coord
	count  int
	have   uint32 // bit i: piece i
	pieces [MaxPieces][]byte
	since  time.Time
}

type complete struct {
	id MessageID
	at time.Time
}

// Take adds a piece, which came through a link; 0: from this node itself. It returns the message when it is whole, in memory
// that the caller owns, and the messages given up to make room.
func (r *Reorder) Take(now time.Time, from grid.Direction, b []byte) (whole []byte, missing []Missing, err error) {
	p, err := decodePiece(b)
	if err != nil {
		r.stats.Refused++
		return nil, nil, err
	}
	r.done = slices.DeleteFunc(r.done, func(c complete) bool { return now.Sub(c.at) >= remembered })
	if slices.ContainsFunc(r.done, func(c complete) bool { return c.id == p.id }) {
		r.stats.Duplicates++
		return nil, nil, nil
	}
	i := slices.IndexFunc(r.open, func(m incomplete) bool { return m.id == p.id && m.origin == p.origin && m.count == p.count })
	if i < 0 {
		missing = r.makeRoom(now, from, p.origin)
		r.open = append(r.open, incomplete{from: from, id: p.id, origin: p.origin, count: p.count, since: now})
		i = len(r.open) - 1
	}
	m := &r.open[i]
	if m.have>>p.index&1 != 0 {
		r.stats.Duplicates++
		return nil, missing, nil
	}
	m.have |= 1 << p.index
	m.pieces[p.index] = slices.Clone(p.data)
	if bits.OnesCount32(m.have) < m.count {
		return nil, missing, nil
	}
	whole = slices.Concat(m.pieces[:m.count]...)
	if sum := sha256.Sum256(whole); MessageID(sum[:len(m.id)]) != m.id {
		r.stats.Altered++
		missing = append(missing, m.missing(now))
		missing[len(missing)-1].Altered = true
		whole = nil
	} else {
		r.stats.Whole++
		if len(r.done) == MaxReorder {
			r.done = slices.Delete(r.done, 0, 1)
		}
		r.done = append(r.done, complete{m.id, now})
	}
	r.open = slices.Delete(r.open, i, i+1)
	return whole, missing, nil
}

// makeRoom gives up a message so that another one of a node may begin at a link.
func (r *Reorder) makeRoom(now time.Time, from grid.Direction, origin grid.Coord) []Missing {
	of, oldest := 0, 0
	begun := map[grid.Direction]int{from: 1} // by link, the new one too
	for i := range slices.Backward(r.open) {
		begun[r.open[i].from]++
		if r.open[i].from == from && r.open[i].origin == origin {
			of++
			oldest = i
		}
	}
	switch {
	case of >= maxOfOrigin:
	case len(r.open) >= MaxReorder:
		most := from
		for i := range r.open {
			if begun[r.open[i].from] > begun[most] {
				most = r.open[i].from
			}
		}
		oldest = r.oldestOf(most, from, origin)
	default:
		return nil
	}
	return []Missing{r.giveUp(now, oldest)}
}

// oldestOf returns the index of the oldest message from a link whose origin has the most messages from that link. The new message, which
// came from origin through from, counts too.
func (r *Reorder) oldestOf(link, from grid.Direction, origin grid.Coord) (oldest int) {
	has := map[grid.Coord]int{}
	if from == link {
		has[origin]++
	}
	for i := range r.open {
		if r.open[i].from == link {
			has[r.open[i].origin]++
		}
	}
	most := 0
	for i := range r.open {
		if n := has[r.open[i].origin]; r.open[i].from == link && n > most {
			oldest, most = i, n
		}
	}
	return oldest
}

func (r *Reorder) giveUp(now time.Time, i int) Missing {
	m := r.open[i].missing(now)
	r.open = slices.Delete(r.open, i, i+1)
	r.stats.Missing++
	return m
}

func (m *incomplete) missing(now time.Time) Missing {
	return Missing{ID: m.id, Origin: m.origin, Have: bits.OnesCount32(m.have), Want: m.count, After: now.Sub(m.since)}
}

// Tick gives up messages that have been incomplete for MissingAfter. It costs nothing while there are none.
func (r *Reorder) Tick(now time.Time) (out []Missing) {
	for len(r.open) > 0 && now.Sub(r.open[0].since) >= MissingAfter {
		out = append(out, r.giveUp(now, 0))
	}
	return out
}

// Incomplete returns the messages that are incomplete now, oldest first: a drain waits for these.
func (r *Reorder) Incomplete(now time.Time) []Missing {
	var out []Missing
	for i := range r.open {
		out = append(out, r.open[i].missing(now))
	}
	return out
}

// Stats returns the counters.
func (r *Reorder) Stats() ReorderStats { return r.stats }
