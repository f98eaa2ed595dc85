package agent

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/servicenet/checksum"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/tests"
)

// The first byte of a test message in the mailbox.
const (
	mailAsks byte = 1 // a probe, to be sent back
	mailEcho byte = 2 // a probe of the receiver's, sent back
)

// prober carries the probes that take their time, those of the report path (two signatures) and of bulk, beside the
// half and without its mutex. What becomes of them comes back as an event.
type prober struct {
	c       *common
	waiting chan selftest.Probe // a test of both modules; what has no room was not tested
	seam    *seam
}

// seam lets tests put themselves between a half and its modules. There is none in a running program.
type seam struct {
	// instead says what a module gets instead of a probe, and after how long.
	instead func(of fault.Origin, m selftest.Module, data []byte) ([][]byte, time.Duration)
	// began is told how the results of a half are had that begins.
	began func(of fault.Origin, results func() []selftest.Result)
}

type seamKey struct{}

func newProber(ctx context.Context, c *common) *prober {
	return &prober{c: c, waiting: make(chan selftest.Probe, 2*selftest.MaxSlots), seam: seamOf(ctx)}
}

// selfTest is how the half tests itself.
func (c *common) selfTest() tests.Config {
	cfg := tests.Config{
		Interval: time.Duration(c.cfg.SelfTest.Interval), IdleAfter: time.Duration(c.cfg.SelfTest.IdleAfter),
	}
	if c.copy.numbers.Epoch != 0 { // it goes on where an earlier life was
		cfg.Kept, cfg.Prove = c.copy.file.Baselines(), true
	}
	if of, h := given(); of == c.half && (h.GetRecovery().GetAgeNs() > 0 || h.GetRecovery().GetState() == lofamov1.RecoveryState_RESTARTING) {
		cfg.Prove = true
	}
	var first [8]byte
	_, _ = rand.Read(first[:]) // never fails
	cfg.First = binary.BigEndian.Uint64(first[:])
	return cfg
}

// saveTests keeps what the self-test has to have after a restart.
func (c *common) saveTests(baselines []byte) {
	c.copy.note(c.log, c.copy.file.StoreBaselines(baselines))
}

// take takes a probe, and says whether there is room for it.
func (p *prober) take(probe selftest.Probe) bool {
	select {
	case p.waiting <- probe:
		return true
	default:
		return false
	}
}

// run carries probes until ctx ends.
func (p *prober) run(ctx context.Context, tell func(selftest.Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case probe := <-p.waiting:
			began := time.Now()
			instead, after := p.instead(probe.Module, probe.Data)
			time.Sleep(after)
			for _, data := range instead {
				back, err := p.carry(probe.Module.Kind, data)
				if err != nil {
					p.c.log.Debug("self-test", "module", probe.Module.String(), "err", err)
					tell(selftest.Refused{Module: probe.Module, ID: probe.ID, Why: err.Error()})
					continue
				}
				tell(selftest.Returned{Module: probe.Module, Data: back, Took: time.Since(began)})
			}
		}
	}
}

// instead is what a module gets for a probe, and when: the probe now, but in tests.
func (p *prober) instead(m selftest.Module, data []byte) ([][]byte, time.Duration) {
	if p.seam == nil {
		return [][]byte{data}, 0
	}
	return p.seam.instead(p.c.self(), m, data)
}

// each gives to a module what it gets for a probe, in tests perhaps later.
func (p *prober) each(m selftest.Module, data []byte, give func([]byte)) {
	instead, after := p.instead(m, data)
	for _, b := range instead {
		if after == 0 {
			give(b)
		} else {
			time.AfterFunc(after, func() { give(b) })
		}
	}
}

// carry takes a probe through a module, and returns what comes out of it.
func (p *prober) carry(k selftest.Kind, data []byte) ([]byte, error) {
	if k == selftest.Bulk {
		return carryBulk(p.c.self(), data)
	}
	return carryReport(p.c.self(), data, p.c.signer, p.c.verifier)
}

// perDetail is how many bytes of a probe the detail of one observation carries.
const perDetail = fault.MaxDetail / 2

// carryReport makes reports of a probe, seals them as all reports are, and opens what comes of that as a supervisor
// does.
func carryReport(self fault.Origin, data []byte, s servicenet.Signer, v servicenet.Verifier) ([]byte, error) {
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
	if len(a.Reports) != 1 || a.Reports[0].ID != r.ID || len(a.Reports[0].Observations) != len(r.Observations) {
		return nil, fmt.Errorf("%d reports, not one of %d observations", len(a.Reports), len(r.Observations))
	}
	var back []byte
	for i, o := range a.Reports[0].Observations {
		if o.Component != all[1+i] || o.State != fault.Normal || o.Kind != fault.KindSelf || o.Node != self.Node {
			return nil, fmt.Errorf("observation %d is %s %s of %s", i, o.Component, o.State, o.Node)
		}
		if back, err = hex.AppendDecode(back, []byte(o.Detail)); err != nil {
			return nil, err
		}
	}
	return back, nil
}

// carryBulk takes a probe for a large object: it is cut into chunks, which are sealed and opened, put together again
// and summed.
func carryBulk(self fault.Origin, data []byte) ([]byte, error) {
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
	sum := checksum.New(checksum.Default)
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
	if checksum.Sum(checksum.Default, back) != sum.Sum64() {
		return nil, errors.New("the checksum of the object put together is another")
	}
	return back, nil
}

// carryRegister stores a probe word by word in the half's test word, and reads each back. It is done within the
// mutex: some microseconds.
func carryRegister(f *regfile.File, p selftest.Probe, data []byte) selftest.Event {
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
			return selftest.Void{Module: p.Module, ID: p.ID} // there is no page: that is told elsewhere
		}
		back = binary.BigEndian.AppendUint32(back, v)
	}
	return selftest.Returned{Module: p.Module, Data: back[:len(data)], Took: time.Since(began)}
}

// sendTestMail puts a test message into the mailbox, unless the other half is behind.
func sendTestMail(box *mailbox.Box, echo bool, data []byte) {
	what := mailAsks
	if echo {
		what = mailEcho
	}
	_ = box.SendSpare(mailbox.Message{Type: mailbox.Test, Payload: append([]byte{what}, data...)}) // lost: found by the test
}

// testMail reads a test message.
func testMail(m mailbox.Message) (echo bool, data []byte) {
	if len(m.Payload) == 0 {
		return false, nil
	}
	return m.Payload[0] == mailEcho, m.Payload[1:]
}
