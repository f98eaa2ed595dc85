package bulk

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Sizes, in bytes except for MaxChunks.
const (
	ChunkSize = 1024     // of every chunk but the last
	MaxSize   = 64 << 20 // of an object
	MaxChunks = MaxSize / ChunkSize
	MaxPacket = 1200 // bytes of a chunk packet: the limit of a torus relay
	MaxTarget = 128  // of a supervisor's id
	keyLabel  = "lofamo.v1 bulk"
)

const (
	chunkMark    = 0xB1
	chunkVersion = 1
	indexAt      = 2 + len(Transfer{})
	targetAt     = indexAt + 5 // after the index and the length
	tagSize      = 16
)

// Transfer is the name of a transfer: 16 random bytes.
type Transfer [16]byte

func (t Transfer) String() string { return hex.EncodeToString(t[:]) }

// ParseTransfer reads the transfer field of a message.
func ParseTransfer(b []byte) (Transfer, error) {
	if len(b) != len(Transfer{}) {
		return Transfer{}, fmt.Errorf("transfer: given %d bytes: want %d", len(b), len(Transfer{}))
	}
	return Transfer(b), nil
}

// Header is the clear-text part of a chunk packet. It is proved only when the chunk is opened.
type Header struct {
	Transfer Transfer
	Index    uint32
	Target   string // id of the supervisor
}

// IsChunk distinguishes a chunk packet from an envelope.
func IsChunk(b []byte) bool { return len(b) > 0 && b[0] == chunkMark }

// Target returns for which supervisor a chunk packet is: all that a half needs that relays it.
func Target(b []byte) (supervisor string, err error) {
	h, _, err := parse(b)
	return h.Target, err
}

// ParseHeader reads the clear part of a chunk packet.
func ParseHeader(b []byte) (Header, error) {
	h, _, err := parse(b)
	return h, err
}

// parse returns the header and its length.
func parse(b []byte) (Header, int, error) {
	bad := func(field string, given, want any) (Header, int, error) {
		return Header{}, 0, fmt.Errorf("chunk packet: %s: given %v: want %v", field, given, want)
	}
	switch {
	case len(b) > MaxPacket:
		return bad("length", len(b), fmt.Sprintf("at most %d", MaxPacket))
	case len(b) < targetAt:
		return bad("length", len(b), fmt.Sprintf("at least %d", targetAt))
	case b[0] != chunkMark:
		return bad("first byte", b[0], chunkMark)
	case b[1] != chunkVersion:
		return bad("version", b[1], chunkVersion)
	}
	n := int(b[targetAt-1])
	if n < 1 || n > MaxTarget {
		return bad("length of the supervisor's id", n, fmt.Sprintf("1 to %d", MaxTarget))
	}
	end := targetAt + n
	if sealed := len(b) - end; sealed <= tagSize || sealed > ChunkSize+tagSize {
		return bad("length of the sealed part", sealed, fmt.Sprintf("%d to %d", tagSize+1, ChunkSize+tagSize))
	}
	return Header{
		Transfer: Transfer(b[2:]),
		Index:    binary.BigEndian.Uint32(b[indexAt:]),
		Target:   string(b[targetAt:end]),
	}, end, nil
}

// Key seals and opens the chunks of one transfer.
type Key struct {
	transfer Transfer
	target   string
	aead     cipher.AEAD
}

// NewKey agrees on the key of a transfer from an object of origin to the supervisor: private is the
// own key of this exchange, peer the public one that the other end sent.
func NewKey(private *ecdh.PrivateKey, peer []byte, t Transfer, origin fault.Origin, supervisor string) (*Key, error) {
	if n := len(supervisor); n < 1 || n > MaxTarget {
		return nil, fmt.Errorf("key of transfer %s: supervisor: given %d bytes: want 1 to %d", t, n, MaxTarget)
	}
	secret, err := servicenet.AgreeKey(private, peer, keyLabel, t[:], []byte(origin.Node), []byte{byte(origin.Half)}, []byte(supervisor))
	if err != nil {
		return nil, fmt.Errorf("key of transfer %s: %w", t, err)
	}
	block, err := aes.NewCipher(secret[:16])
	if err != nil {
		return nil, fmt.Errorf("key of transfer %s: %w", t, err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("key of transfer %s: %w", t, err)
	}
	return &Key{t, supervisor, aead}, nil
}

// Seal appends the packet of a chunk to dst. The same index must always have the same data.
func (k *Key) Seal(dst []byte, index uint32, data []byte) ([]byte, error) {
	if len(data) < 1 || len(data) > ChunkSize {
		return nil, fmt.Errorf("seal chunk %d of transfer %s: given %d bytes: want 1 to %d", index, k.transfer, len(data), ChunkSize)
	}
	start := len(dst)
	dst = append(dst, chunkMark, chunkVersion)
	dst = append(dst, k.transfer[:]...)
	dst = binary.BigEndian.AppendUint32(dst, index)
	dst = append(dst, byte(len(k.target)))
	dst = append(dst, k.target...)
	return k.aead.Seal(dst, nonce(index), data, dst[start:]), nil
}

var errForeign = errors.New("chunk packet of another transfer or supervisor")

// Open returns the content of a packet, in memory of its own.
func (k *Key) Open(packet []byte) (index uint32, data []byte, err error) {
	h, n, err := parse(packet)
	if err != nil {
		return 0, nil, err
	}
	if h.Transfer != k.transfer || h.Target != k.target {
		return 0, nil, errForeign
	}
	data, err = k.aead.Open(nil, nonce(h.Index), packet[n:], packet[:n])
	if err != nil {
		return 0, nil, fmt.Errorf("open chunk %d of transfer %s: %w", h.Index, k.transfer, err)
	}
	return h.Index, data, nil
}

func nonce(index uint32) []byte {
	return binary.BigEndian.AppendUint32(make([]byte, 8, 12), index)
}
