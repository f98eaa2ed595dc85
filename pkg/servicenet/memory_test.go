package servicenet

import (
	"bytes"
	"runtime"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// bytesPerRun returns the allocation of f in bytes, on average.
func bytesPerRun(f func()) uint64 {
	const runs = 50
	f() // one-time allocations
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) / runs
}

// refusingVerifier knows no signer.
type refusingVerifier struct{}

func (refusingVerifier) VerifyName(_, _, _ []byte) (role, name string, err error) {
	return "", "", errBadMAC
}
func (refusingVerifier) VerifyMAC(uint64, []byte, []byte) (role, name string, err error) {
	return "", "", errBadMAC
}

// fill repeats part as often as a datagram has room for beside head and a seal of the given size.
func fill(head, part []byte, seal int) []byte {
	return append(bytes.Clone(head), bytes.Repeat(part, (MaxDatagram-seal-len(head))/len(part))...)
}

// A message without proof costs next to nothing in any shape.
func TestMemoryOfUnproved(t *testing.T) {
	forged := fill(nil, []byte{0x0a, 0x00}, 40) // empty reports, as many as go in
	p := packet{payload: forged, session: 1, mac: make([]byte, MACSize)}
	q := packet{payload: fill(nil, []byte{0x0a, 0x00}, 500), certificate: make([]byte, 300), signature: make([]byte, signatureSize),
		algorithm: lofamov1.Checksum_CHECKSUM_XXHASH64}
	for name, b := range map[string][]byte{
		"noise":           bytes.Repeat([]byte{0xa7}, MaxDatagram),
		"groups":          bytes.Repeat([]byte{0x53}, MaxDatagram),
		"empty fields":    bytes.Repeat([]byte{0x0a, 0x00}, MaxDatagram/2),
		"unknown fields":  bytes.Repeat([]byte{0x78, 0x00}, MaxDatagram/2),
		"a length beyond": append([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x07}, make([]byte, 1000)...),
		"too long":        make([]byte, 1<<16),
		"a forged MAC":    p.encode(),
		"a forged report": q.encode(),
	} {
		var err error
		if got := bytesPerRun(func() { _, err = Open(b, refusingVerifier{}) }); got > 1024 {
			t.Errorf("%s: %d bytes for %d, want at most 1024", name, got, len(b))
		}
		if RefusalOf(err) == 0 {
			t.Errorf("%s: %v: want a refusal", name, err)
		}
	}
}

// The memory that a holder of a good key can make a receiver allocate for one datagram is bounded by the datagram: an
// empty message of two bytes becomes one of at most 150 in memory, until it is refused.
func TestMemoryOfProved(t *testing.T) {
	report := marshal(t, EncodeReport(fault.Report{ID: sampleReport().ID, Digest: true}))
	sessions := newSessions()
	for name, payload := range map[string][]byte{
		"empty reports":      field(1, fill(nil, []byte{0x0a, 0x00}, 50)),
		"empty observations": field(1, field(1, fill(report, []byte{0x1a, 0x00}, 50))),
		"empty acks":         fill(nil, []byte{0x7a, 0x00}, 40),
		"empty hops":         field(5, fill(nil, []byte{0x12, 0x00}, 50)),
		"empty rails":        field(1, field(2, fill(nil, []byte{0x52, 0x00}, 50))),
		"empty ranges":       field(13, fill(nil, []byte{0x22, 0x00}, 50)),
		"sequence numbers":   field(15, fill(nil, []byte{0x28, 0x01}, 50)),
		"checksums":          field(7, fill(nil, []byte{0x30, 0x01}, 50)),
		"unknown fields":     fill(nil, []byte{0x80, 0x02, 0x00}, 40),
		"bodies":             fill(nil, []byte{0x0a, 0x00, 0x1a, 0x00}, 40),
	} {
		b := macSealRaw(payload, 1)
		var err error
		got := bytesPerRun(func() { _, err = Open(b, sessions) })
		if got > 128<<10 {
			t.Errorf("%s: %d bytes for %d, want at most 128 KiB", name, got, len(b))
		}
		if RefusalOf(err) == 0 {
			t.Errorf("%s: %v: want a refusal", name, err)
		}
	}
}

// field encodes a field of bytes.
func field(number byte, b []byte) []byte {
	p := []byte{number<<3 | 2, byte(len(b)&0x7f | 0x80), byte(len(b) >> 7)}
	return append(p, b...)
}
