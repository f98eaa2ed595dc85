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

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// asSender turns this test binary into a sender; its value is an order in JSON.
const asSender = "LOFAMO_TEST_AS_SENDER"

// order is the task of a sender.
type order struct {
	Dir         string // directory of its epoch, spool and journal
	PKI         string // directory of keys and certificates
	Node        fault.NodeID
	Kept        int               // minimum number of reports known to be kept, over all its runs
	Supervisors map[string]string // report addresses by ID
	// Flood is the number of reports per second, made even if they do not fit, with a changed component in each. 0
	// means as many as fit, with none left out.
	Flood int
}

const (
	// pendingReports is the limit of a sender's log. It is lower than the log's capacity, so that no report is left
	// out.
	pendingReports = 400
	// syncEvery is the number of reports after which the sender waits for its spool and records the kept ones.
	syncEvery  = 64
	spoolBytes = 2 << 20
)

// sender is the part of a node's host half that handles reports. It belongs to the goroutine of run; only syncs run in
// other goroutines.
type sender struct {
	order
	id       fault.Origin
	begun    time.Time
	signer   *pki.Signer
	verifier servicenet.Verifier
	table    *direct.Sessions
	asked    map[uint64]*ecdh.PrivateKey // by the request's ID
	socket   *direct.Socket
	rail     *direct.Rail
	keeper   *storage.ReportLog
	box      *servicenet.Sender
	log      *slog.Logger

	journal   *journal
	made      int // number of the last report
	kept      int // number of reports known to be kept
	unsettled []int
	restored  map[fault.ReportID]bool // from earlier runs, and still in the log
	syncing   chan error              // nil if no sync is in progress
	stop      chan struct{}           // closed at the end of stdin: the sender may finish
	stopped   bool
	done      sync.Once // it was reported
	leftOut   uint64
	most      int // largest number in the log at a time
	digestAt  time.Time
	period    time.Duration // of digests
	dropped   atomic.Uint64 // datagrams dropped because the channel was full
}

// runSender is the main function of a sender. It returns when it has made enough reports, stdin has ended, and
// everything is committed.
func runSender(text string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		log.Error("order", "err", err)
		return 2
	}
	s := &sender{order: o, id: fault.Origin{Node: o.Node, Half: fault.HalfHost}, begun: time.Now(), log: log, table: direct.NewSessions(),
		asked: map[uint64]*ecdh.PrivateKey{}, stop: make(chan struct{})}
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
	s.verifier = direct.WithSessions(v, s.table)
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
		Path: filepath.Join(s.Dir, "spool"), Size: spoolBytes, Origin: s.id, Logger: s.log, Boot: boot, Now: storage.SinceBoot,
	})
	if why := s.keeper.Why(); why != "" {
		return fmt.Errorf("spool: %s", why)
	}
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		return err
	}
	s.period = p.DigestPeriod
	cfg := halfcore.OutboxConfig(p, fault.PathDirect)
	if s.box, err = servicenet.NewSender(s.id, e, cfg); err != nil {
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

// datagram is a received datagram.
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

// wantsMore reports whether more reports are necessary.
func (s *sender) wantsMore() bool { return !s.stopped || s.kept+len(s.unsettled) < s.Kept }

// work makes reports while there is room, and carries out the outbox's output.
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

// digest restates the flood's last state of each component; without a flood only the host's state.
func (s *sender) digest() fault.Report {
	obs := []fault.Observation{{Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindSelf}}
	for i := 0; s.Flood > 0 && i < min(s.made, len(supervisortest.OwnComponents)); i++ {
		obs = append(obs, makeReport(s.Node, s.made-i, s.changesEvery()).Observations...)
	}
	return fault.Report{Digest: true, Partial: true, Uptime: time.Since(s.begun), Observations: obs}
}

// hasRoom reports whether the next report may be made now.
func (s *sender) hasRoom(now time.Time) bool {
	if s.Flood > 0 {
		return s.made < int(now.Sub(s.begun).Seconds()*float64(s.Flood))
	}
	return s.box.Stats().Pending < pendingReports && s.syncing == nil
}

// changesEvery returns the number of reports on a component between two changes of its state.
func (s *sender) changesEvery() int {
	if s.Flood > 0 {
		return 1
	}
	return 12
}

// sync records the reports made so far as kept, once the spool confirms them.
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

// carryOut carries out the output in the same order as the shell of a half.
func (s *sender) carryOut(o servicenet.SenderOutput) error {
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
	if s.most = max(s.most, st.Pending); s.most > servicenet.DefaultOutboxConfig(fault.PathDirect).MaxReports+1 { // plus a digest
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
		_ = s.rail.Send(m.Target, b) // a failed send is a loss, as on the network
	}
	for _, p := range o.Paths {
		if err := s.sendPath(p); err != nil {
			return err
		}
	}
	return nil
}

// Progress messages of a sender, one line each.
const (
	saysCommitted = "committed" // followed by the number since the last message
	saysLeftOut   = "left out"  // followed by the number since the last message
	saysCaughtUp  = "caught up" // the reports of earlier runs are committed
	saysDone      = "done"      // a flood is over and committed; the sender keeps running, so that its last state remains valid
)

// tell prints the progress: the reports that have left the log, and the number of committed ones.
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

// agree creates the session of a reply.
func (s *sender) agree(supervisor string, r *lofamov1.PathReply) {
	private := s.asked[r.GetId()]
	if private == nil || fault.Epoch(r.GetEpoch()) != s.box.Epoch() {
		return
	}
	x := servicenet.PathExchange{Half: s.id.String(), Epoch: r.GetEpoch(), ID: r.GetId(), Supervisor: supervisor, Session: r.GetSession()}
	if secret, err := x.Secret(private, r.GetKey()); err == nil {
		s.table.Put(supervisor, servicenet.RoleSupervisor, servicenet.NewSession(r.GetSession(), secret))
	}
}

// finish logs the sender's counters.
func (s *sender) finish() error {
	st := s.box.Stats()
	s.log.Info("all is committed", "node", s.Node, "made", s.made, "kept", s.kept, "retries", st.Retries, "datagrams", st.Datagrams,
		"migrations", st.Migrations, "left_out", st.Shortened, "most", s.most, "rtt", st.RTT, "dropped", s.dropped.Load())
	return s.keeper.Close()
}

// makeReport makes report n of a node, with a unique text. The components take turns, and each changes its state after
// a number of reports on it.
func makeReport(node fault.NodeID, n, changes int) fault.Report {
	own := supervisortest.OwnComponents
	state := fault.Normal
	if n/len(own)/changes%2 == 1 {
		state = fault.Sick
	}
	return fault.Report{Uptime: time.Duration(n) * time.Millisecond, Registers: fault.Registers{HostWatchdog: uint32(n)},
		Observations: []fault.Observation{{
			Node: node, Component: own[n%len(own)], State: state, Kind: fault.KindSelf,
			Detail: fmt.Sprintf("%d reported by %s %x", n, node, uint32(n)*2654435761),
		}}}
}

// numberOf returns the number of a report, and the number of earlier ones that it counts as left out.
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
