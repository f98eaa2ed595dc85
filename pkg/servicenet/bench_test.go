package servicenet

import (
	"fmt"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// freeSigner costs nothing, so that only codec and checksum are measured. internal/pki measures Ed25519.
type freeSigner struct{ cert, sig []byte }

func (s freeSigner) Cert() []byte       { return s.cert }
func (s freeSigner) Sign([]byte) []byte { return s.sig }

type freeVerifier struct{ fakeSessions }

func (freeVerifier) VerifyName(_, _, _ []byte) (role, name string, err error) {
	return RoleNode, "n0-0-1/host", nil
}

func benchReports(n int) []fault.Report {
	var out []fault.Report
	for i := range n {
		r := fault.Report{ID: fault.ReportID{Origin: origin("n0-0-1/host"), Epoch: 3, Seq: fault.Seq(i + 1)}, Digest: true,
			Observations: []fault.Observation{{Node: "n0-0-1", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf,
				Age: 1000}}}
		out = append(out, r)
	}
	return out
}

// One message of reports, sealed and opened, by kind of proof and number of reports.
func BenchmarkSealOpen(b *testing.B) {
	signer := freeSigner{make([]byte, 308), make([]byte, signatureSize)}
	many, _ := asManyAs(benchReports(1)[0], usualRoom.by(fault.PathDirect))
	for _, how := range []struct {
		name string
		o    SealOptions
	}{
		{"codec", SealOptions{Checksum: lofamov1.Checksum_CHECKSUM_NONE.Enum()}},
		{"codec+checksum", SealOptions{}},
		{"codec+checksum+MAC", SealOptions{Session: testKey(1)}},
	} {
		for _, n := range []int{1, 8, len(many)} {
			rs := benchReports(n)
			b.Run(fmt.Sprintf("%s/%d", how.name, n), func(b *testing.B) { benchSealOpen(b, rs, signer, freeVerifier{newSessions()}, how.o) })
		}
	}
}

func benchSealOpen(b *testing.B, rs []fault.Report, s Signer, v Verifier, o SealOptions) {
	b.ReportAllocs()
	for b.Loop() {
		e, err := SealReports(rs, nil, s, o)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Unwrap(e, fault.PathDirect, v); err != nil {
			b.Fatal(err)
		}
	}
}

// The envelope alone: marshal and parse, with every checksum.
func BenchmarkPacket(b *testing.B) {
	p := packet{payload: make([]byte, 200), certificate: make([]byte, 308), signature: make([]byte, signatureSize)}
	for _, a := range Checksums() {
		p.algorithm = a
		e := p.encode()
		b.Run("encode/"+ChecksumName(a), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.encode()
			}
		})
		b.Run("parse/"+ChecksumName(a), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q, err := parsePacket(e)
				if err != nil || q.checkSum() != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMAC(b *testing.B) {
	k, payload := testKey(1), make([]byte, 300)
	b.ReportAllocs()
	for b.Loop() {
		k.MAC(payload)
	}
}
