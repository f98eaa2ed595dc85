package campaign

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/servicenet/keys"
	"github.com/lofamo/lofamo/pkg/servicenet/sessions"

	"github.com/lofamo/lofamo/internal/agent/delivery"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/agent/storage/backup"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/supervisortest"
)

// asSender makes this test binary a sender: its value is an order, in JSON.
const asSender = "LOFAMO_TEST_AS_SENDER"

// order is what a sender is to do.
type order struct {
	Dir         string // of its epoch, spool and journal
	PKI         string // directory of keys and certificates
	Node        fault.NodeID
	Kept        int               // at least as many reports, over all its lives, are to be known to be kept
	Supervisors map[string]string // report addresses by id
	// Flood makes so many reports a second, whatever becomes of them, and its components change with
	// each; 0: as many as there is room for, and none is left out.
	Flood int
}

const (
	// pendingReports bounds what a sender has in its log: less than the log takes, so that nothing is
	// left out of it.
	pendingReports = 400
	// syncEvery so many reports the sender waits for its spool, and notes what is kept.
	syncEvery  = 64
	spoolBytes = 2 << 20
)

// sender is the host half of a node, as far as its reports are concerned. Its goroutine is run's; only
// syncs are made beside it.
type sender struct {
	order
	id       fault.Origin
	begun    time.Time
	signer   *pki.Signer
	verifier servicenet.Verifier
	table    *sessions.Table
	asked    map[uint64]*ecdh.PrivateKey // by the request's id
	socket   *direct.Socket
	rail     *direct.Rail
	keeper   *storage.ReportLog
	box      *delivery.Sender
	log      *slog.Logger

	journal   *journal
	made      int // the number of the last report
	kept      int // how many are known to be kept
	unsettled []int
	restored  map[fault.ReportID]bool // of earlier lives, and still in the log
	syncing   chan error              // nil: no sync is under way
	stop      chan struct{}           // closed when stdin ends: what is wanted is enough
	stopped   bool
	done      sync.Once // said
	leftOut   uint64
	most      int // in the log at a time
	digestAt  time.Time
	period    time.Duration // of digests
	dropped   atomic.Uint64 // datagrams for which there was no room
}

// runSender is the whole program of a sender. It returns when there is enough, stdin has ended, and
// everything is committed.
func runSender(text string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		log.Error("order", "err", err)
		return 2
	}
	s := &sender{order: o, id: fault.Origin{Node: o.Node, Half: fault.HalfHost}, begun: time.Now(), log: log, table: sessions.NewTable(), asked: map[uint64]*ecdh.PrivateKey{}, stop: make(chan struct{})}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(s.stop)
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := s.open()
	if err == nil {
		err = s.run(ctx)
	}
	if err != nil {
		log.Error("sender failed", "node", o.Node, "err", err)
		return 1
	}
	return 0
}

func (s *sender) open() error {
	name := filepath.Join(s.PKI, string(s.Node)+"-host")
	var err error
	if s.signer, err = pki.LoadSigner(name+".pem", name+".key"); err != nil {
		return err
	}
	v, err := pki.LoadVerifier(filepath.Join(s.PKI, "ca.pem"), supervisortest.Name)
	if err != nil {
		return err
	}
	s.verifier = sessions.With(v, s.table)
	targets, ids := make(map[string]netip.AddrPort), []string{}
	for id, addr := range s.Supervisors {
		if targets[id], err = netip.ParseAddrPort(addr); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if s.socket, err = direct.Listen("127.0.0.1:0", direct.Options{}); err != nil {
		return err
	}
	s.rail = direct.NewRail(s.socket, targets)
	if s.journal, err = openJournal(s.Dir); err != nil {
		return err
	}
	e, garbled, err := storage.NextEpoch(filepath.Join(s.Dir, "epoch"))
	if err != nil || garbled != nil {
		return fmt.Errorf("epoch: %w, %w", err, garbled)
	}
	return s.begin(e, ids)
}

func (s *sender) begin(e fault.Epoch, supervisors []string) error {
	boot, err := storage.BootID()
	if err != nil {
		return err
	}
	var kept []servicenet.Kept
	s.keeper, kept = storage.OpenReportLog(storage.ReportLogConfig{
		Path: filepath.Join(s.Dir, "spool"), Size: spoolBytes, Origin: s.id, Logger: s.log, Boot: boot, Now: backup.SinceBoot,
	})
	if why := s.keeper.Why(); why != "" {
		return fmt.Errorf("spool: %s", why)
	}
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		return err
	}
	s.period = p.DigestPeriod
	cfg := delivery.OutboxConfig(p, fault.PathDirect)
	if s.box, err = delivery.New(s.id, e, cfg); err != nil {
		return err
	}
	var found []int
	s.restored = map[fault.ReportID]bool{}
	for _, k := range kept {
		s.restored[k.Report.ID] = true
		n, _ := numberOf(k.Report)
		found = append(found, n)
	}
	if s.made, s.kept, err = s.journal.goOn(found); err != nil {
		return err
	}
	if len(kept) == 0 {
		fmt.Println(saysCaughtUp)
	}
	now := time.Now()
	s.box.Restore(now, kept)
	s.box.Step(now, servicenet.Supervisors{Targets: supervisors})
	return nil
}

// datagram is one that came.
type datagram struct {
	from netip.AddrPort
	data []byte
}

func (s *sender) run(ctx context.Context) error {
	in := make(chan datagram, 1024)
	ended := make(chan error, 1)
	go func() {
		ended <- s.socket.Run(ctx, func(from netip.AddrPort, b []byte) {
			select {
			case in <- datagram{from, slices.Clone(b)}:
			default:
				s.dropped.Add(1)
			}
		})
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		if err := s.work(now); err != nil {
			return err
		}
		if !s.wantsMore() && len(s.unsettled) == 0 && s.box.Stats().Pending == 0 && s.syncing == nil {
			if s.Flood == 0 {
				return s.finish()
			}
			s.done.Do(func() { fmt.Println(saysDone) })
		}
		wait := min(time.Until(s.box.Wake()), time.Until(s.digestAt))
		if s.Flood > 0 {
			wait = min(wait, time.Second/time.Duration(s.Flood))
		}
		timer.Reset(max(0, wait))
		select {
		case d := <-in:
			s.receive(d)
			for n := len(in); n > 0; n-- {
				s.receive(<-in)
			}
		case <-timer.C:
		case err := <-s.syncing:
			if err != nil {
				return err
			}
			s.syncing = nil
		case <-s.stop:
			s.stop, s.stopped = nil, true
		case err := <-ended:
			return err
		}
	}
}

// wantsMore says whether more reports are to be made.
func (s *sender) wantsMore() bool { return !s.stopped || s.kept+len(s.unsettled) < s.Kept }

// work makes reports while there is room, and does what the outbox wants.
func (s *sender) work(now time.Time) error {
	s.box.Tick(now)
	if !now.Before(s.digestAt) && (s.wantsMore() || s.Flood > 0) {
		s.digestAt = now.Add(s.period)
		s.box.Add(now, s.digest())
	}
	for s.wantsMore() && s.hasRoom(now) {
		s.made++
		s.box.Add(now, makeReport(s.Node, s.made, s.changesEvery()))
		s.unsettled = append(s.unsettled, s.made)
		if err := s.carryOut(s.box.Take()); err != nil {
			return err
		}
		if len(s.unsettled) >= syncEvery && s.syncing == nil {
			s.sync()
		}
	}
	if !s.wantsMore() && len(s.unsettled) > 0 && s.syncing == nil {
		s.sync()
	}
	return s.carryOut(s.box.Take())
}

// digest restates what a flood said last of each component; without one only the host's state.
func (s *sender) digest() fault.Report {
	obs := []fault.Observation{{Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindSelf}}
	for i := 0; s.Flood > 0 && i < min(s.made, len(supervisortest.OwnComponents)); i++ {
		obs = append(obs, makeReport(s.Node, s.made-i, s.changesEvery()).Observations...)
	}
	return fault.Report{Digest: true, Partial: true, Uptime: time.Since(s.begun), Observations: obs}
}

// hasRoom says whether the next report may be made now.
func (s *sender) hasRoom(now time.Time) bool {
	if s.Flood > 0 {
		return s.made < int(now.Sub(s.begun).Seconds()*float64(s.Flood))
	}
	return s.box.Stats().Pending < pendingReports && s.syncing == nil
}

// changesEvery is after how many reports on a component its state changes.
func (s *sender) changesEvery() int {
	if s.Flood > 0 {
		return 1
	}
	return 12
}

// sync has what was made until now noted as kept, once the spool says so.
func (s *sender) sync() {
	ns, done := s.unsettled, make(chan error, 1)
	s.unsettled, s.syncing = nil, done
	s.kept += len(ns)
	go func() {
		err := s.keeper.Sync(context.Background())
		if err == nil {
			err = s.journal.kept(ns)
		}
		done <- err
	}()
}

// carryOut does what the shell of a half does, in its order.
func (s *sender) carryOut(o delivery.Output) error {
	if o.NewEpoch != 0 {
		return fmt.Errorf("epoch %d was refused: %d is wanted", s.box.Epoch(), o.NewEpoch)
	}
	st := s.box.Stats()
	if st.Shortened > 0 && s.Flood == 0 {
		return fmt.Errorf("%d reports were left out of the log", st.Shortened)
	}
	leftOut := st.Shortened - s.leftOut
	if s.leftOut = st.Shortened; leftOut > 0 {
		fmt.Println(saysLeftOut, leftOut)
	}
	if s.most = max(s.most, st.Pending); s.most > servicenet.DefaultOutboxConfig(fault.PathDirect).MaxReports+1 { // and a digest
		return fmt.Errorf("%d reports in the log", s.most)
	}
	for _, r := range o.Keep {
		if err := s.journal.made(r); err != nil {
			return err
		}
	}
	s.keeper.Keep(o.Keep)
	s.keeper.Forget(o.Forget)
	s.tell(o.Forget, len(o.Forget)-int(leftOut))
	for i := range o.Send {
		m := &o.Send[i]
		how := servicenet.SealOptions{Checksum: m.Checksum}
		if m.Session {
			how.Session = s.table.Newest(m.Target)
		}
		b, err := servicenet.SealReports(m.Reports, m.Status, s.signer, how)
		if err != nil {
			return err
		}
		_ = s.rail.Send(m.Target, b) // what is not sent is lost, as on the way
	}
	for _, p := range o.Paths {
		if err := s.sendPath(p); err != nil {
			return err
		}
	}
	return nil
}

// What a sender says, a line for each.
const (
	saysCommitted = "committed" // then how many since it last said so
	saysLeftOut   = "left out"  // then how many since it last said so
	saysCaughtUp  = "caught up" // what earlier lives have left is committed
	saysDone      = "done"      // a flood is over and committed; the sender lives on, so that its word still counts
)

// tell tells the test of progress: what has left the log, and how much of it is committed.
func (s *sender) tell(gone []fault.ReportID, committed int) {
	if committed > 0 {
		fmt.Println(saysCommitted, committed)
	}
	before := len(s.restored)
	for _, id := range gone {
		delete(s.restored, id)
	}
	if before > 0 && len(s.restored) == 0 {
		fmt.Println(saysCaughtUp)
	}
}

// sendPath sends a REQ or an ACK.
func (s *sender) sendPath(p servicenet.PathMessage) error {
	msg := &lofamov1.Message{Body: &lofamov1.Message_PathAck{PathAck: p.Ack}}
	if r := p.Request; r != nil {
		private := s.asked[r.GetId()]
		if private == nil {
			var err error
			if private, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
				return err
			}
			s.asked[r.GetId()] = private
			delete(s.asked, r.GetId()-8)
		}
		r.Key = private.PublicKey().Bytes()
		msg.Body = &lofamov1.Message_PathRequest{PathRequest: r}
	}
	b, err := servicenet.Seal(msg, s.signer)
	if err != nil {
		return err
	}
	_ = s.rail.Send(p.Path.Supervisor, b)
	return nil
}

func (s *sender) receive(d datagram) {
	now := time.Now()
	o, err := servicenet.Open(d.data, s.verifier)
	if err != nil {
		if servicenet.IsDamaged(err) {
			s.box.Step(now, servicenet.Damaged{Path: fault.PathDirect, Supervisor: s.supervisorAt(d.from)})
		}
		return
	}
	if r := o.Msg.GetPathReply(); r != nil {
		s.agree(o.Name, r)
	}
	s.box.Heard(now, o, fault.PathDirect, 0)
}

func (s *sender) supervisorAt(addr netip.AddrPort) string {
	for id, at := range s.Supervisors {
		if at == addr.String() {
			return id
		}
	}
	return ""
}

// agree makes the session of a reply.
func (s *sender) agree(supervisor string, r *lofamov1.PathReply) {
	private := s.asked[r.GetId()]
	if private == nil || fault.Epoch(r.GetEpoch()) != s.box.Epoch() {
		return
	}
	x := keys.PathExchange{Half: s.id.String(), Epoch: r.GetEpoch(), ID: r.GetId(), Supervisor: supervisor, Session: r.GetSession()}
	if secret, err := x.Secret(private, r.GetKey()); err == nil {
		s.table.Put(supervisor, servicenet.RoleSupervisor, servicenet.NewSession(r.GetSession(), secret))
	}
}

// finish tells how it went.
func (s *sender) finish() error {
	st := s.box.Stats()
	s.log.Info("all is committed", "node", s.Node, "made", s.made, "kept", s.kept, "retries", st.Retries, "datagrams", st.Datagrams,
		"migrations", st.Migrations, "left_out", st.Shortened, "most", s.most, "rtt", st.RTT, "dropped", s.dropped.Load())
	return s.keeper.Close()
}

// makeReport makes report n of a node: the text is of no other. The components take turns, and each
// changes its state after so many reports on it.
func makeReport(node fault.NodeID, n, changes int) fault.Report {
	own := supervisortest.OwnComponents
	state := fault.Normal
	if n/len(own)/changes%2 == 1 {
		state = fault.Sick
	}
	return fault.Report{Uptime: time.Duration(n) * time.Millisecond, Registers: fault.Registers{HostWatchdog: uint32(n)}, Observations: []fault.Observation{{
		Node: node, Component: own[n%len(own)], State: state, Kind: fault.KindSelf, Detail: fmt.Sprintf("%d reported by %s %x", n, node, uint32(n)*2654435761),
	}}}
}

// numberOf reads the number of a report, and how many earlier ones it says were left out.
func numberOf(r fault.Report) (n, leftOut int) {
	if len(r.Observations) != 1 {
		return 0, 0
	}
	text := r.Observations[0].Detail
	if mark, rest, ok := strings.Cut(text, "] "); ok {
		_, _ = fmt.Sscanf(mark, "[%d earlier left out", &leftOut)
		text = rest
	}
	_, _ = fmt.Sscanf(text, "%d reported by", &n)
	return n, leftOut
}
