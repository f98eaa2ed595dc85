package half

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// This file takes the self-test's probes through the modules inside a half: the report path, bulk transfer, and the
// register path. It returns the results; pkg/selftest judges them.

// perDetail is the number of a probe's bytes that the detail of one observation carries.
const perDetail = fault.MaxDetail / 2

// ProbeReport makes reports from a probe, seals them like all reports, and opens the result as a supervisor does.
func ProbeReport(self fault.Origin, data []byte, s servicenet.Signer, v servicenet.Verifier) ([]byte, error) {
	r := fault.Report{ID: fault.ReportID{Origin: self, Epoch: 1, Seq: 1}}
	all := fault.Components()
	for i := 0; len(data) > i*perDetail; i++ {
		part := data[i*perDetail : min(len(data), (i+1)*perDetail)]
		r.Observations = append(r.Observations, fault.Observation{
			Node: self.Node, Component: all[1+i], State: fault.Normal, Kind: fault.KindSelf, Detail: hex.EncodeToString(part),
		})
	}
	b, err := servicenet.SealReports([]fault.Report{r}, nil, s, servicenet.SealOptions{})
	if err != nil {
		return nil, err
	}
	a, err := servicenet.Unwrap(b, fault.PathDirect, v)
	if err != nil {
		return nil, err
	}
	if len(a.List) != 1 || a.List[0].ID != r.ID || len(a.List[0].Observations) != len(r.Observations) {
		return nil, fmt.Errorf("%d reports, not one of %d observations", len(a.List), len(r.Observations))
	}
	var back []byte
	for i, o := range a.List[0].Observations {
		if o.Component != all[1+i] || o.State != fault.Normal || o.Kind != fault.KindSelf || o.Node != self.Node {
			return nil, fmt.Errorf("observation %d is %s %s of %s", i, o.Component, o.State, o.Node)
		}
		if back, err = hex.AppendDecode(back, []byte(o.Detail)); err != nil {
			return nil, err
		}
	}
	return back, nil
}

// ProbeBulk takes a probe through the steps of a large object: it is cut into chunks, which are sealed, opened,
// reassembled and summed.
func ProbeBulk(self fault.Origin, data []byte) ([]byte, error) {
	const target = "self-test"
	mine, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	theirs, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	var id bulk.Transfer
	seal, err := bulk.NewKey(mine, theirs.PublicKey().Bytes(), id, self, target)
	if err != nil {
		return nil, err
	}
	open, err := bulk.NewKey(theirs, mine.PublicKey().Bytes(), id, self, target)
	if err != nil {
		return nil, err
	}
	sum := servicenet.NewChecksummer(servicenet.DefaultChecksum)
	var back, packet []byte
	for i := 0; i*bulk.ChunkSize < len(data); i++ {
		part := data[i*bulk.ChunkSize : min(len(data), (i+1)*bulk.ChunkSize)]
		_, _ = sum.Write(part) // never fails
		if packet, err = seal.Seal(packet[:0], uint32(i), part); err != nil {
			return nil, err
		}
		n, chunk, err := open.Open(packet)
		if err != nil {
			return nil, err
		}
		if int(n) != i {
			return nil, fmt.Errorf("chunk %d came as %d", i, n)
		}
		back = append(back, chunk...)
	}
	if servicenet.ChecksumOf(servicenet.DefaultChecksum, back) != sum.Sum64() {
		return nil, errors.New("the checksum of the object put together is another")
	}
	return back, nil
}

// ProbeRegister stores a probe word by word in the half's test word, and reads each word back. It takes some
// microseconds. data holds the bytes to store.
func ProbeRegister(f *regfile.File, p selftest.Probe, data []byte) selftest.Event {
	began := time.Now()
	back := make([]byte, 0, len(data))
	for i := 0; i < len(data); i += 4 {
		var word [4]byte
		copy(word[:], data[i:])
		v, err := f.Test(binary.BigEndian.Uint32(word[:]))
		if errors.Is(err, regfile.ErrCorrupt) {
			return selftest.Refused{Module: p.Module, ID: p.ID, Why: err.Error()}
		}
		if err != nil {
			return selftest.Void{Module: p.Module, ID: p.ID} // no register page: reported elsewhere
		}
		back = binary.BigEndian.AppendUint32(back, v)
	}
	return selftest.Returned{Module: p.Module, Data: back[:len(data)], Took: time.Since(began)}
}
