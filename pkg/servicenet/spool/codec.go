package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	// MaxPayload bounds Record.Payload, in bytes. A report fits into a datagram of 1400.
	MaxPayload = 4096

	version      = 1
	headerSize   = 320  // bytes that the CRC covers, and the CRC
	headerStride = 4096 // the two copies never share a page
	ringStart    = 2 * headerStride
	blockSize    = 64

	recordHead = 32
	reportHead = recordHead + 40
	freeHead   = recordHead + 8
	maxRecord  = reportHead + MaxPayload
	maxFreed   = (maxRecord - freeHead) / 8 // sequence numbers in one record

	maxNodeID = 255
)

const (
	headerMagic = "LOFASPOL"
	recordMagic = 'L' | 'S'<<8 | 'P'<<16 | 'R'<<24
)

type kind uint8

const (
	kindReport kind = iota + 1
	kindFree
)

func (k kind) String() string {
	switch k {
	case kindReport:
		return "report"
	case kindFree:
		return "free"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

// fileID distinguishes the records of one file from those of any other.
type fileID [16]byte

type header struct {
	origin fault.Origin
	size   int64 // of the file
	id     fileID
}

// ringSize returns the bytes for records in a file of the given size, a multiple of blockSize.
func ringSize(fileSize int64) int64 {
	return max(0, fileSize-ringStart) / blockSize * blockSize
}

func encodeHeader(h header) []byte {
	b := make([]byte, headerSize)
	copy(b, headerMagic)
	le.PutUint32(b[8:], version)
	b[12] = byte(h.origin.Half)
	b[13] = byte(len(h.origin.Node))
	le.PutUint64(b[16:], uint64(h.size))
	copy(b[24:], h.id[:])
	copy(b[40:40+maxNodeID], h.origin.Node)
	sealHeader(b)
	return b
}

func sealHeader(b []byte) {
	le.PutUint32(b[headerSize-4:], crc32.Checksum(b[:headerSize-4], castagnoli))
}

var (
	errNoHeader = errors.New("no header: nothing was begun here")
	errGarbled  = errors.New("garbled header")
	errVersion  = errors.New("other version")
)

// decodeHeader reads the first copy that is good.
func decodeHeader(image []byte) (header, error) {
	begun := error(nil)
	for at := 0; at < ringStart; at += headerStride {
		h, err := decodeHeaderCopy(image[min(at, len(image)):])
		if err == nil || errors.Is(err, errVersion) {
			return h, err
		}
		if !errors.Is(err, errNoHeader) {
			begun = err
		}
	}
	if begun == nil {
		return header{}, errNoHeader
	}
	return header{}, begun
}

func decodeHeaderCopy(b []byte) (header, error) {
	b = b[:min(headerSize, len(b))]
	if len(bytes.Trim(b, "\x00")) == 0 {
		return header{}, errNoHeader
	}
	if len(b) < headerSize || string(b[:8]) != headerMagic || le.Uint32(b[headerSize-4:]) != crc32.Checksum(b[:headerSize-4], castagnoli) {
		return header{}, errGarbled
	}
	if v := le.Uint32(b[8:]); v != version {
		return header{}, fmt.Errorf("%w: given %d: want %d", errVersion, v, version)
	}
	h := header{
		origin: fault.Origin{Node: fault.NodeID(b[40 : 40+int(b[13])]), Half: fault.Half(b[12])},
		size:   int64(le.Uint64(b[16:])),
	}
	copy(h.id[:], b[24:])
	if !h.origin.Half.Valid() || h.origin.Node == "" || h.size < ringStart+blockSize {
		return header{}, fmt.Errorf("%w: of %s, for a file of %d bytes", errGarbled, h.origin, h.size)
	}
	return h, nil
}

// key is a report's id without its origin, which a file has only one of.
type key struct {
	epoch fault.Epoch
	seq   fault.Seq
}

// entry is a record of the ring. The payload is not its own.
type entry struct {
	number, tail uint64
	at           int64 // offset in the ring
	length       int   // without padding
	kind         kind

	key     key // of a report; of a free record only the epoch
	boot    [16]byte
	added   int64 // CLOCK_BOOTTIME, ns
	payload []byte
	freed   []fault.Seq
}

// blocks returns the bytes that a record of the given length takes in the ring.
func blocks(length int) int64 { return (int64(length) + blockSize - 1) / blockSize * blockSize }

func (e *entry) size() int64 { return blocks(e.length) }

// appendEntry appends the record, padded, and sets its length.
func appendEntry(b []byte, id fileID, e *entry) []byte {
	start := len(b)
	b = le.AppendUint32(b, recordMagic)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, e.number)
	b = le.AppendUint64(b, e.tail)
	b = le.AppendUint32(b, 0)
	b = append(b, byte(e.kind), 0, 0, 0)
	b = le.AppendUint64(b, uint64(e.key.epoch))
	if e.kind == kindReport {
		b = le.AppendUint64(b, uint64(e.key.seq))
		b = append(b, e.boot[:]...)
		b = le.AppendUint64(b, uint64(e.added))
		b = append(b, e.payload...)
	}
	for _, s := range e.freed {
		b = le.AppendUint64(b, uint64(s))
	}
	e.length = len(b) - start
	le.PutUint32(b[start+24:], uint32(e.length))
	le.PutUint32(b[start+4:], checksum(id, e.at, b[start:]))
	return append(b, make([]byte, e.size()-int64(e.length))...)
}

// checksum returns the checksum of a whole record, without padding.
func checksum(id fileID, at int64, record []byte) uint32 {
	var seed [24]byte
	copy(seed[:], id[:])
	le.PutUint64(seed[16:], uint64(at))
	return crc32.Update(crc32.Checksum(seed[:], castagnoli), castagnoli, record[8:])
}

// decodeEntry reads the record with which b begins, at an offset of the ring, and false when there is
// none that is good. The entry shares memory with b, its list of freed reports apart.
func decodeEntry(b []byte, id fileID, at int64) (entry, bool) {
	if len(b) < freeHead || le.Uint32(b) != recordMagic {
		return entry{}, false
	}
	e := entry{number: le.Uint64(b[8:]), tail: le.Uint64(b[16:]), at: at, kind: kind(b[28])}
	length := le.Uint32(b[24:])
	if length < freeHead || length > maxRecord || int(length) > len(b) || e.tail == 0 || e.tail > e.number {
		return entry{}, false
	}
	e.length = int(length)
	b = b[:length]
	if le.Uint32(b[4:]) != checksum(id, at, b) {
		return entry{}, false
	}
	e.key.epoch = fault.Epoch(le.Uint64(b[32:]))
	switch {
	case e.kind == kindReport && length >= reportHead:
		e.key.seq = fault.Seq(le.Uint64(b[40:]))
		copy(e.boot[:], b[48:])
		e.added = int64(le.Uint64(b[64:]))
		e.payload = b[reportHead:]
	case e.kind == kindFree && length%8 == 0:
		for at := freeHead; at < len(b); at += 8 {
			e.freed = append(e.freed, fault.Seq(le.Uint64(b[at:])))
		}
	default:
		return entry{}, false
	}
	return e, true
}
