package integration

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// said is one observation that reached the supervisor.
type said struct {
	by   fault.Origin
	path fault.Path
	hops []fault.Hop
	obs  fault.Observation
}

func (s said) String() string {
	return fmt.Sprintf("%s says by %s (%d hops): %s %s %s %s %q", s.by, s.path, len(s.hops), s.obs.Node, s.obs.Component, s.obs.State,
		s.obs.Kind, s.obs.Detail)
}

// fakeSupervisor acknowledges every report and records all messages.
type fakeSupervisor struct {
	t        *testing.T
	id       string
	net      *direct.Socket
	close    func() // its socket; the kernel then returns errors to senders
	signer   *pki.Signer
	verifier *pki.Verifier

	mu         sync.Mutex
	news       *sync.Cond
	heard      []said
	answers    map[string]fault.Origin        // by nonce
	mask       *lofamov1.MaskStatus           // the last that came
	denied     map[fault.NodeID]uint64        // version of the list of revoked certificates that a node stated last
	mapped     []*lofamov1.MapFindings        // all that came
	configured *lofamov1.ConfigurationStatus  // the last that came
	acts       map[string]*lofamov1.ActStatus // by node, response and attempt, the last that came
	// procedures are all statuses of procedures that came, findings those of diagnosed links by node and link.
	procedures []*lofamov1.ProcedureStatus
	findings   map[string]*lofamov1.LinkFinding
	peers      map[string]*lofamov1.PeerStatus
	reports    map[fault.ReportID]int // how often each came
	sessions   *direct.Sessions
	requests   map[uint64]*lofamov1.PathRequest // by id
	pathAcks   map[uint64]bool                  // ids
	byMAC      int                              // digests that came under a session
	bySign     int                              // digests that came signed
	unknown    int                              // messages of sessions that it does not have
	mute       bool                             // it receives everything and never answers
	macs       bool                             // it proves its acks by the session, where there is one
	bulk       chan bulkArrival                 // nil: none is expected
	damage     int                              // of the next answers, so many are damaged on the way
	asked      int                              // calls of awaitOneAnswer
	restarts   []fault.RestartNotice            // all that came
	// words are the last words of a kernel that a half stated last.
	words map[fault.Origin]*lofamov1.LastWords
}

func newFakeSupervisor(t *testing.T, n *testNet, ca *pki.CA, id string) *fakeSupervisor {
	t.Helper()
	f := &fakeSupervisor{
		t: t, id: id, answers: map[string]fault.Origin{}, denied: map[fault.NodeID]uint64{}, peers: map[string]*lofamov1.PeerStatus{},
		reports:  map[fault.ReportID]int{},
		sessions: direct.NewSessions(),
		acts:     map[string]*lofamov1.ActStatus{}, requests: map[uint64]*lofamov1.PathRequest{}, pathAcks: map[uint64]bool{},
		findings: map[string]*lofamov1.LinkFinding{}, words: map[fault.Origin]*lofamov1.LastWords{},
	}
	f.news = sync.NewCond(&f.mu)
	cert, key := n.path(id+".pem"), n.path(id+".key")
	err := ca.IssueTo(cert, key, pki.SupervisorIdentity(testCluster, id), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.signer, err = pki.LoadSigner(cert, key); err != nil {
		t.Fatal(err)
	}
	if f.verifier, err = pki.LoadVerifier(n.path("ca.pem"), testCluster); err != nil {
		t.Fatal(err)
	}
	if f.net, err = direct.Listen(freeport.Addr(t).String(), direct.Options{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.net.Run(ctx, f.onDatagram) }()
	f.close = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("fake supervisor: %v", err)
		}
	})
	t.Cleanup(f.close)
	return f
}

func (f *fakeSupervisor) onDatagram(from netip.AddrPort, b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.news.Broadcast()
	if bulk.IsChunk(b) {
		f.bulk <- bulkArrival{from: from, chunk: bytes.Clone(b)}
		return
	}
	d, err := servicenet.Unwrap(b, fault.PathDirect, direct.WithSessions(f.verifier, f.sessions))
	if servicenet.RefusalOf(err) == servicenet.RefusedSession {
		f.unknown++
		return
	}
	if err != nil {
		f.t.Errorf("supervisor refuses a message: %v", err)
		return
	}
	if a := d.Msg.GetAnswer(); a != nil {
		f.answers[string(a.GetNonce())] = servicenet.OriginOf(a)
	}
	if st := d.Msg.GetMaskStatus(); st != nil {
		f.mask = st
	}
	if st := d.Msg.GetProcedureStatus(); st != nil {
		f.procedures = append(f.procedures, st)
	}
	if l := d.Msg.GetDiagnosisFindings().GetLink(); l != nil {
		f.findings[fmt.Sprint(d.Msg.GetDiagnosisFindings().GetNode(), l.GetDirection())] = l
	}
	if st := d.Msg.GetPeerStatus(); st != nil {
		if was := f.peers[st.GetNode()]; st.GetConfiguration() {
			st.Number, st.Peers, st.Torus = was.GetNumber(), was.GetPeers(), was.GetTorus()
		} else {
			st.Ends, st.Configured = was.GetEnds(), was.GetConfigured()
		}
		f.peers[st.GetNode()] = st
	}
	if m := d.Msg.GetMapFindings(); m != nil {
		f.mapped = append(f.mapped, m)
	}
	if st := d.Msg.GetActStatus(); st != nil {
		f.acts[fmt.Sprint(st.GetNode(), st.GetResponse(), st.GetAttempt())] = st
	}
	if st := d.Msg.GetConfigurationStatus(); st != nil {
		f.configured = st
	}
	if d.Msg.GetBulkAnnounce() != nil {
		f.bulk <- bulkArrival{from: from, announce: &d}
		return
	}
	if d.Status != nil && len(d.List) > 0 {
		f.denied[d.List[0].ID.Origin.Node] = d.Status.GetDenied()
	}
	f.note(&d)
	if f.mute {
		return
	}
	if q := d.Msg.GetPathRequest(); q != nil {
		f.reply(from, q)
	}
	if a := d.Msg.GetPathAck(); a != nil {
		f.pathAcks[a.GetId()] = true
	}
	for _, r := range d.List {
		for _, s := range []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED} {
			acks := servicenet.NewAcks(s, r.ID)
			acks[0].Leader = "sup-0"
			f.send(from, r.ID.Origin.Node, d.Path, &lofamov1.Message{Acks: acks})
		}
	}
}

// note records an arrival.
func (f *fakeSupervisor) note(d *servicenet.Arrival) {
	for _, r := range d.List {
		if w := d.Health.Of(r.ID.Origin.Half).GetLastWords(); len(w) > 0 {
			f.words[r.ID.Origin] = w[0]
		}
		if f.reports[r.ID]++; r.Restart.Half != 0 && f.reports[r.ID] == 1 {
			f.restarts = append(f.restarts, r.Restart)
		}
		for _, o := range r.Observations {
			f.heard = append(f.heard, said{r.ID.Origin, d.Path, d.Hops, o})
		}
		switch {
		case !r.Digest || d.Path != fault.PathDirect:
		case d.Session != 0:
			f.byMAC++
		default:
			f.bySign++
		}
	}
}

// reply answers a request for a path, as a supervisor does: with a session.
func (f *fakeSupervisor) reply(to netip.AddrPort, q *lofamov1.PathRequest) {
	f.requests[q.GetId()] = q
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		f.t.Errorf("fake supervisor: %v", err)
		return
	}
	x := servicenet.PathExchange{
		Half: servicenet.OriginOf(q).String(), Epoch: q.GetEpoch(), ID: q.GetId(),
		Supervisor: f.id, Session: mathrand.Uint64() | 1,
	}
	secret, err := x.Secret(private, q.GetKey())
	if err != nil {
		f.t.Errorf("fake supervisor: %v", err)
		return
	}
	f.sessions.Put(x.Half, servicenet.RoleNode, servicenet.NewSession(x.Session, secret))
	f.send(to, fault.NodeID(q.GetNode()), fault.PathDirect, &lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: &lofamov1.PathReply{
		Node: q.GetNode(), Half: q.GetHalf(), Epoch: q.GetEpoch(), Id: q.GetId(), Session: x.Session, Key: private.PublicKey().Bytes(),
		Checksum: servicenet.ChooseChecksum(q.GetChecksums(), servicenet.Checksums()), Leader: "sup-0",
	}}})
}

// set changes how it behaves.
func (f *fakeSupervisor) set(change func(*fakeSupervisor)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// send sends a message to a node: directly, or as a downcall by the host that is at from.
func (f *fakeSupervisor) send(to netip.AddrPort, node fault.NodeID, path fault.Path, m *lofamov1.Message) {
	how := servicenet.SealOptions{}
	if f.macs && m.GetBody() == nil && path == fault.PathDirect {
		how.Session = f.sessions.Newest(fault.Origin{Node: node, Half: fault.HalfHost}.String())
	}
	b, err := servicenet.SealWith(m, f.signer, how)
	if err == nil && path == fault.PathTorus {
		b, err = servicenet.SealDowncall(node, b, f.signer)
	}
	if err != nil {
		f.t.Errorf("fake supervisor: %v", err)
		return
	}
	if f.damage > 0 {
		f.damage--
		b[len(b)/2] ^= 1
	}
	if err := f.net.Send(to, b); err != nil && !errors.Is(err, servicenet.ErrClosed) { // the test is over
		f.t.Errorf("fake supervisor: %v", err)
	}
}

// forget makes await ignore all earlier messages.
func (f *fakeSupervisor) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = nil
}

// await waits until a recorded message fits.
func (f *fakeSupervisor) await(what string, fits func(said) bool) said {
	f.t.Helper()
	return f.awaitLocked(what, func() (said, bool) {
		for _, s := range f.heard {
			if fits(s) {
				return s, true
			}
		}
		return said{}, false
	})
}

// awaitOneAnswer sends a challenge with a new nonce every second until a half answers one, because the torus or a loaded
// machine may lose a datagram.
func (f *fakeSupervisor) awaitOneAnswer(challenge func(nonce string)) (by fault.Origin) {
	f.t.Helper()
	f.asked++
	prefix, i := fmt.Sprintf("one answer %03d", f.asked), 0
	f.awaitAsking("an answer", func() bool {
		for nonce, o := range f.answers {
			if strings.HasPrefix(nonce, prefix) {
				by = o
				return true
			}
		}
		return false
	}, func() {
		challenge(fmt.Sprintf("%s%02x", prefix, i))
		i++
	})
	return by
}

// awaitAsking calls ask at once, and then every second until a condition on the supervisor holds.
func (f *fakeSupervisor) awaitAsking(what string, holds func() bool, ask func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for ctx.Err() == nil {
			ask()
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	f.awaitThat(what, holds)
}

func (f *fakeSupervisor) awaitLocked(what string, look func() (said, bool)) said {
	f.t.Helper()
	late := false
	stop := time.AfterFunc(bound, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		late = true
		f.news.Broadcast()
	})
	defer stop.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if s, ok := look(); ok {
			return s
		}
		if late {
			for _, s := range f.heard[max(0, len(f.heard)-60):] {
				f.t.Log(s)
			}
			f.t.Fatalf("not heard within %s: %s", bound, what)
		}
		f.news.Wait()
	}
}

// awaitState waits for a statement on a component of a node by anybody whose word fits.
func (f *fakeSupervisor) awaitState(by fault.Origin, node fault.NodeID, c fault.Component, s fault.State, k fault.Kind) said {
	f.t.Helper()
	return f.await(fmt.Sprintf("%s: %s %s %s %s", by, node, c, s, k), func(x said) bool {
		return x.by == by && x.obs.Node == node && x.obs.Component == c && x.obs.State == s && x.obs.Kind == k
	})
}

// awaitThat waits until a condition on the supervisor holds.
func (f *fakeSupervisor) awaitThat(what string, holds func() bool) {
	f.t.Helper()
	f.awaitLocked(what, func() (said, bool) { return said{}, holds() })
}
