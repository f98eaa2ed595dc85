package express

import (
	"encoding/binary"
	"fmt"
)

// Kinds of payloads of frames of TypeEureka that are of data; see Data.
const (
	kindState kind = iota + 5
	kindWant
	kindPiece
)

const (
	// MaxData is the longest datum, in bytes.
	MaxData = 64 << 10
	// DataPiece is the size of a piece in a frame, in bytes, so that the frame fits a path with an MTU of 1,280.
	DataPiece = 1024
	// DataTopics is the last topic that data may have. A node holds at most two data of each.
	DataTopics = 8

	sumSize     = 16
	stateSize   = 4 + 8 + 4 + sumSize + 8
	wantSize    = 4 + 8 + sumSize + 8
	pieceHeader = 4 + 8 + sumSize
	// MaxDataPayload bounds the payloads that Data sends, in bytes.
	MaxDataPayload = pieceHeader + DataPiece

	flagAsk   = 1 // in a state: it requests an answer
	flagAgain = 1 // in a want: the list of wanted pieces is complete
)

// MaxData in pieces is a word: sets of pieces are one.
var _ [64]struct{} = [MaxData / DataPiece]struct{}{}

// DataID names a datum by its content: two nodes that publish the same datum publish one. Within a topic the higher
// number is newer; of equal numbers, all nodes take the same one as newer.
type DataID struct {
	Topic  Topic
	Number uint64        // from 1
	Sum    [sumSize]byte // first bytes of the body's SHA-256
}

// String returns "topic number/sum".
func (id DataID) String() string { return fmt.Sprintf("%s %d/%x", id.Topic, id.Number, id.Sum[:4]) }

// newer reports whether id replaces another one of its topic; no datum has the number 0.
func (id DataID) newer(o DataID) bool {
	if id.Number != o.Number {
		return id.Number > o.Number
	}
	return string(id.Sum[:]) > string(o.Sum[:])
}

// dataFrame is a decoded payload of data. Its data aliases the decoded bytes.
type dataFrame struct {
	kind   kind
	id     DataID
	prio   Priority // of a state
	flag   bool
	length int    // of a state, in bytes
	pieces uint64 // of a state: present pieces; of a want: wanted pieces
	index  int    // of a piece
	data   []byte // of a piece
}

// IsData reports whether the payload of a frame of TypeEureka is for Data, and not for a Machine.
func IsData(payload []byte) bool {
	return len(payload) > 0 && kind(payload[0]) >= kindState && kind(payload[0]) <= kindPiece
}

// allPieces is the set of the pieces of a datum.
func allPieces(length int) uint64 { return 1<<((length+DataPiece-1)/DataPiece) - 1 }

// pieceOf is where a piece lies.
func pieceOf(index, length int) (from, to int) {
	return index * DataPiece, min(length, (index+1)*DataPiece)
}

func appendDataID(b []byte, id DataID) []byte {
	return append(binary.BigEndian.AppendUint64(b, id.Number), id.Sum[:]...)
}

func bitOf(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

func (f *dataFrame) append(b []byte) []byte {
	b = append(b, byte(f.kind), byte(f.id.Topic))
	switch f.kind {
	case kindState:
		b = append(b, byte(f.prio), bitOf(f.flag, flagAsk))
		b = appendDataID(b, f.id)
		b = binary.BigEndian.AppendUint32(b, uint32(f.length))
		b = binary.BigEndian.AppendUint64(b, f.pieces)
	case kindWant:
		b = append(b, 0, bitOf(f.flag, flagAgain))
		b = appendDataID(b, f.id)
		b = binary.BigEndian.AppendUint64(b, f.pieces)
	case kindPiece:
		b = append(b, byte(f.index), 0)
		b = append(appendDataID(b, f.id), f.data...)
	default: // of a Machine
	}
	return b
}

// decodeData reads a payload for which IsData holds. For a topic beyond DataTopics it reads only the kind and the
// topic.
func decodeData(b []byte) (f dataFrame, err error) {
	if len(b) < wantSize && (len(b) <= pieceHeader || kind(b[0]) != kindPiece) {
		return f, fmt.Errorf("data of %d bytes, want %d or more: %w", len(b), pieceHeader+1, ErrPayload)
	}
	f.kind = kind(b[0])
	f.id = DataID{Topic: Topic(b[1]), Number: binary.BigEndian.Uint64(b[4:]), Sum: [sumSize]byte(b[12:])}
	if f.id.Topic > DataTopics {
		return f, nil
	}
	rest := b[pieceHeader:]
	switch f.kind {
	case kindState:
		if len(b) != stateSize {
			return f, fmt.Errorf("state of data of %d bytes, want %d: %w", len(b), stateSize, ErrPayload)
		}
		f.prio, f.flag = Priority(b[2]), b[3]&flagAsk != 0
		f.length, f.pieces = int(binary.BigEndian.Uint32(rest)), binary.BigEndian.Uint64(rest[4:])
		if f.id.Topic != 0 { // a state of topic 0 has no more fields
			err = f.checkState()
		}
	case kindWant:
		if len(b) != wantSize {
			return f, fmt.Errorf("want of data of %d bytes, want %d: %w", len(b), wantSize, ErrPayload)
		}
		f.flag, f.pieces = b[3]&flagAgain != 0, binary.BigEndian.Uint64(rest)
		err = f.checkID()
	case kindPiece:
		f.index, f.data = int(b[2]), rest
		if f.index >= MaxData/DataPiece || len(f.data) > DataPiece {
			return f, fmt.Errorf("piece %d of data, of %d bytes: want 0 to %d, at most %d: %w", f.index, len(f.data), MaxData/DataPiece-1,
				DataPiece, ErrPayload)
		}
		err = f.checkID()
	default: // of a Machine
	}
	return f, err
}

func (f *dataFrame) checkID() error {
	if f.id.Topic == 0 || f.id.Number == 0 {
		return fmt.Errorf("data %s: want a topic and a number from 1: %w", f.id, ErrPayload)
	}
	return nil
}

func (f *dataFrame) checkState() error {
	switch {
	case f.length < 1 || f.length > MaxData:
		return fmt.Errorf("data %s: length %d, want 1 to %d: %w", f.id, f.length, MaxData, ErrPayload)
	case f.prio > MaxPriority:
		return fmt.Errorf("data %s: priority %d, want 0 to %d: %w", f.id, f.prio, MaxPriority, ErrPayload)
	case f.pieces&^allPieces(f.length) != 0:
		return fmt.Errorf("data %s: pieces %#x of %d bytes: %w", f.id, f.pieces, f.length, ErrPayload)
	}
	return f.checkID()
}
