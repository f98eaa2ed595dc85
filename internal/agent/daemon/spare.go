package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/pki"
)

// Intervals of a waiting spare.
const (
	// spareSays is the interval at which it reports its presence and its ends of links to the supervisors. The first
	// intervals are shorter, from spareSaysFirst on, each twice as long as the one before: a report may be lost.
	spareSays      = 10 * time.Second
	spareSaysFirst = 500 * time.Millisecond
	// placeLook is the interval at which a spare's daemon checks for a new place. A daemon of one half alone, which
	// does not listen, also checks at this interval whether the other daemon received the first place.
	placeLook = time.Second
)

// AwaitPlace makes a spare wait for its place, as Run does before it starts the halves. It returns at once for a node
// that has a place, and when ctx ends.
func AwaitPlace(ctx context.Context, cfg RunConfig, log *slog.Logger) error {
	return (&daemon{cfg: cfg, log: log}).awaitPlace(ctx)
}

// awaitPlace makes a spare wait for its place. No half runs, because a half without a place has no neighbours and
// nothing to watch. It listens at the host half's address, so that the supervisors find it where their topology says.
// It returns at once for a node that has a place, and when ctx ends.
func (d *daemon) awaitPlace(ctx context.Context) error {
	if !d.cfg.Agent.Spare || half.WithStoredPeers(d.cfg.Agent).Coord != "" {
		return nil
	}
	d.log.Info("spare: waits for a place", "listen", d.cfg.Agent.Service.Listen)
	d.manager.to.Status("spare: waits for a place")
	d.manager.to.Ready()
	d.manager.ready = true // set before any reader exists
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for _, h := range d.cfg.halves() { // a waiting daemon is healthy
		g.Go(func() error {
			_ = half.ServeUnix(ctx, d.statePath(local.LiveSocket(h)), http.HandlerFunc(waitingSpare))
			return nil
		})
	}
	g.Go(func() error { d.signsOfSpare(ctx); return nil })
	g.Go(func() error {
		defer cancel()
		if d.cfg.Half == fault.HalfDNP {
			d.lookForPlace(ctx)
			return nil
		}
		s, err := newSpare(d)
		if err != nil {
			return err
		}
		return s.run(ctx)
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("spare %s: %w", d.cfg.Agent.Node, err)
	}
	return nil
}

// errMoved: the node's place changed or was withdrawn, and its halves have been stopped.
var errMoved = errors.New("this node's place has changed")

// inPlace runs serve while the node keeps its present place. When the node gets another place, or a spare loses its place,
// inPlace stops the halves, because they have no neighbours at the old place any more. Their copies and undelivered reports are about the
// old place: at the new one the halves begin cold, in a new boot epoch.
func (d *daemon) inPlace(ctx context.Context, serve func(context.Context) error) error {
	at, _ := storage.PeerOrders().Load(d.cfg.Agent.StateDir)
	ctx, leave := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { d.watchPlace(ctx, at, leave) })
	err := serve(ctx)
	leave(nil)
	wg.Wait()
	if err == nil && errors.Is(context.Cause(ctx), errMoved) {
		for _, h := range d.cfg.halves() {
			if c := d.halves[h]; c == nil || c.served == "" { // else another process still serves the half
				d.forgetPlace(h)
			}
		}
		return errMoved
	}
	return err
}

// forgetPlace removes a half's copy and its undelivered reports, which are from a former place.
func (d *daemon) forgetPlace(h fault.Half) {
	for _, file := range []string{half.CopyPath(d.cfg.Agent.StateDir, h), half.SpoolPath(d.cfg.Agent.StateDir, h)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("remove a half's file from the former place: failed", "half", h.String(), "err", err)
		}
	}
}

// leaveFormerPlace stops the halves whose copies are from a former place, and removes their copies and undelivered reports. An earlier
// daemon ended between the order for the present place and the stop of its halves. A node without a place keeps no such files, not
// even those of an earlier boot.
func (d *daemon) leaveFormerPlace() {
	word, lost := storage.PeerOrders().Load(d.cfg.Agent.StateDir)
	boot, err := storage.BootID()
	if err != nil {
		d.log.Warn("cannot determine the place that the halves serve", "err", err)
		return
	}
	configured := d.configuredPlace()
	for _, h := range d.cfg.halves() {
		was := "" // unknown
		copied, err := storage.ReadCopy(half.CopyPath(d.cfg.Agent.StateDir, h), storage.CopyIdentity{Node: d.cfg.Agent.Node, Half: h, Boot: boot})
		if err == nil {
			was = copied.Place()
		}
		left := was != "" && moved(configured, was, word, lost)
		if !left && (lost != nil || !d.withdrawn(word)) {
			continue
		}
		c := d.halves[h]
		p, served := c.adopt()
		if served {
			continue // adopt has logged the reason
		}
		if p != nil {
			c.log.Warn("half serves a former place: stopping it", "was", was, "is", cmp.Or(word.Place(), configured), "order", word.Number)
			c.set(p)
			c.stop()
		}
		if c.links != nil {
			c.links.close()
		}
		d.forgetPlace(h)
	}
}

// moved reports whether the place on disk differs from at. A missing or unreadable file proves nothing. Without a place on
// disk, one that is configured counts.
func moved(configured, at string, word peers.State, lost error) bool {
	return lost == nil && word.Number != 0 && cmp.Or(word.Place(), configured) != at
}

// withdrawn reports whether the supervisors have committed that this node has no place.
func (d *daemon) withdrawn(word peers.State) bool {
	return word.Number != 0 && cmp.Or(word.Place(), d.configuredPlace()) == ""
}

// configuredPlace returns the place in the node's file; empty: it is a spare.
func (d *daemon) configuredPlace() string {
	if c, err := grid.ParseCoord(d.cfg.Agent.Coord); err == nil && !d.cfg.Agent.Spare {
		return c.String()
	}
	return ""
}

// watchPlace watches until ctx ends for a change of the place, which at names.
func (d *daemon) watchPlace(ctx context.Context, at peers.State, leave context.CancelCauseFunc) {
	t := time.NewTicker(placeLook)
	defer t.Stop()
	configured := d.configuredPlace()
	was := cmp.Or(at.Place(), configured)
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		word, lost := storage.PeerOrders().Load(d.cfg.Agent.StateDir)
		if !moved(configured, was, word, lost) {
			if lost == nil && (word.Placed || configured != "") {
				at = word // its neighbours may be others
			}
			continue
		}
		d.log.Warn("this node's place has changed: stopping the halves", "was", was, "is", cmp.Or(word.Place(), configured),
			"order", word.Number)
		d.left.Store(&at)
		if d.withdrawn(word) {
			d.announced.Store(true)
		}
		d.manager.goesOn()
		leave(errMoved)
		return
	}
}

// signsOfSpare sends keep-alives to the service manager.
func (d *daemon) signsOfSpare(ctx context.Context) {
	every := d.manager.to.Every()
	if every == 0 {
		return
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		d.manager.to.Alive()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// lookForPlace waits until the host half's daemon has received the place.
func (d *daemon) lookForPlace(ctx context.Context) {
	t := time.NewTicker(placeLook)
	defer t.Stop()
	for half.WithStoredPeers(d.cfg.Agent).Coord == "" {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// spare is a node that has no place yet.
type spare struct {
	d        *daemon
	known    *halfcore.PeersConfig
	net      *direct.Socket
	signer   *pki.Signer
	verifier *pki.Verifier
	placed   context.CancelFunc // there is a place

	supervisors []netip.AddrPort
	life        uint64 // PeerStatus.life

	mu       sync.Mutex
	word     peers.State
	lost     bool
	renewals []*half.Renewer // of both halves, which do not run yet
	turn     int             // index of the next supervisor, for requests
}

// newSpare acquires every resource that may be refused. It signs as the DNP half, which will have the links.
func newSpare(d *daemon) (*spare, error) {
	cfg := d.cfg.Agent
	word, lost := storage.PeerOrders().Load(d.cfg.Agent.StateDir)
	if lost != nil {
		d.log.Error("stored place lost: asking the supervisors", "err", lost)
	}
	known := half.PeersConfig(cfg, word, lost)
	known.Moves = true
	s := &spare{d: d, known: known, word: word, lost: lost != nil, life: max(1, rand.Uint64())}
	for _, sup := range cfg.Supervisors {
		s.supervisors = append(s.supervisors, netip.MustParseAddrPort(sup.Addr(0))) // validated
	}
	var err error
	if s.signer, err = half.LoadSigner(cfg, fault.HalfDNP); err != nil {
		return nil, half.RefusedFile(err)
	}
	if s.verifier, err = pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster); err != nil {
		return nil, half.RefusedFile(err)
	}
	host, err := half.LoadSigner(cfg, fault.HalfHost)
	if err != nil {
		return nil, half.RefusedFile(err)
	}
	for h, signer := range map[fault.Half]*pki.Signer{fault.HalfHost: host, fault.HalfDNP: s.signer} {
		r := half.NewRenewer(d.log, fault.Origin{Node: cfg.Node, Half: h}, cfg.StateDir, signer, s.verifier)
		r.Send = s.request
		r.Keep()
		s.renewals = append(s.renewals, r)
	}
	s.net, err = direct.Listen(cfg.Service.Listen, direct.Options{Interface: cfg.Service.Interface, MaxRate: half.MaxDatagrams,
		Strangers: half.MaxStrangers})
	if err == nil {
		s.net.Know(s.supervisors)
	}
	return s, err
}

// run waits until there is a place, or ctx ends.
func (s *spare) run(ctx context.Context) error {
	ctx, s.placed = context.WithCancel(ctx)
	defer s.placed()
	var wg sync.WaitGroup
	wg.Go(func() {
		pause := spareSaysFirst
		t := time.NewTimer(pause)
		defer t.Stop()
		for {
			s.renew(time.Now())
			s.say(netip.AddrPort{})
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			pause = min(2*pause, spareSays)
			t.Reset(pause)
		}
	})
	err := s.net.Run(ctx, s.take)
	wg.Wait()
	return err
}

// take handles a supervisor's message: a place, or a question.
func (s *spare) take(from netip.AddrPort, b []byte) {
	o, err := servicenet.Open(b, s.verifier)
	if err != nil {
		s.d.log.Debug("message refused", "err", err)
		return
	}
	if reply := o.Msg.GetRenewReply(); reply != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range s.renewals {
			r.Answered(reply)
		}
		return
	}
	if c := o.Msg.GetChallenge(); c.GetNode() == string(s.d.cfg.Agent.Node) && slices.Contains(s.supervisors, from) {
		s.answer(from, c.GetNonce())
		return
	}
	if order := o.Msg.GetPeerOrder(); order.GetNode() == string(s.d.cfg.Agent.Node) {
		placed := s.order(order)
		s.say(from)
		if placed {
			s.placed()
		}
	}
}

// spareEpoch is the boot epoch in the answers of a waiting spare, which has none.
const spareEpoch = 1

// answer answers a supervisor's challenge: this spare holds its name and its address.
func (s *spare) answer(to netip.AddrPort, nonce []byte) {
	who := fault.Origin{Node: s.d.cfg.Agent.Node, Half: fault.HalfDNP}
	b, err := half.SealAnswer(nonce, who, spareEpoch, s.signer)
	if err == nil {
		err = s.net.Send(to, b)
	}
	if err != nil {
		s.d.log.Debug("challenge not answered", "err", err)
	}
}

// renew keeps the certificates of both halves current while the spare waits.
func (s *spare) renew(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.renewals {
		if _, err := r.Signer.Renew(); err != nil {
			s.d.log.Debug("loading a new certificate and key fails", "err", err)
		}
		r.Tick(now)
	}
}

// request sends a request for a certificate to the next supervisor in turn, or to all. The caller holds the mutex.
func (s *spare) request(b []byte, toAll bool) {
	targets := s.supervisors
	if !toAll {
		targets = targets[s.turn%len(targets):][:1]
		s.turn++
	}
	for _, addr := range targets {
		_ = s.net.Send(addr, b) // a lost request is repeated
	}
}

// order applies the supervisors' order, and reports whether it assigns a place. Then the place is on disk, the
// supervisors are informed, and the halves may start.
func (s *spare) order(order *lofamov1.PeerOrder) (placed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := peers.FromOrder(order)
	if err == nil && next.Placed {
		err = s.fits(next)
	}
	if err != nil {
		s.d.log.Warn("place refused", "err", err)
		return false
	}
	if halfcore.PeersOfAnotherLife(s.word, order, s.life) {
		s.d.log.Info("peer order refused: it is for another incarnation of this spare", "order", order.GetNumber(),
			"order_incarnation", order.GetLife(), "incarnation", s.life)
		return false
	}
	next, verdict := s.word.Order(next)
	if verdict != chanmask.Taken {
		return false
	}
	if err := storage.PeerOrders().Save(s.d.cfg.Agent.StateDir, next); err != nil {
		s.d.log.Error("place not kept: it is not taken", "err", err)
		return false
	}
	s.word, s.lost = next, false
	if next.Placed {
		s.d.log.Info("spare is put in a place", "order", next.Number, "peers", next.String())
	}
	return next.Placed
}

// fits returns an error for an order that a half would refuse: a place outside the torus, a link without a peer. Where
// the spare has no end of its own it gets no link.
func (s *spare) fits(next peers.State) error {
	cfg := half.WithPeers(s.d.cfg.Agent, next)
	at, dims, err := cfg.Topology()
	if err != nil {
		return err
	}
	links := 0
	for _, d := range dims.LinksOf(at) {
		l, own := cfg.Links[d.String()]
		peer, err := netip.ParseAddrPort(l.Peer)
		switch end, _ := netip.ParseAddrPort(l.Local); {
		case !own && next.Peers[d.Index()].Node != "":
			return fmt.Errorf("links.%s: a peer is given: this spare has no end in that direction", d)
		case !own:
		case err != nil:
			return fmt.Errorf("links.%s.peer: given %q: want an address: at %s in the %s torus is a link", d, l.Peer, at, dims)
		case peer.Addr().Unmap().Is4() != end.Addr().Unmap().Is4():
			return fmt.Errorf("links.%s.peer: given %s: want the family of this end, %s", d, peer, end)
		default:
			links++
		}
	}
	if links == 0 {
		return fmt.Errorf("place %s in the %s torus: this spare has no end for any of its links", at, dims)
	}
	return nil
}

// say reports this node's state to the supervisors: to one that has asked, or to all.
func (s *spare) say(to netip.AddrPort) {
	s.mu.Lock()
	all := halfcore.PeerStatuses(s.d.cfg.Agent.Node, 0, "", s.word, *s.known, s.lost)
	s.mu.Unlock()
	targets := []netip.AddrPort{to}
	if !to.IsValid() {
		targets = s.supervisors
	}
	for _, st := range all {
		st.Life = s.life
		b, err := half.SealPeers(st, s.signer)
		if err != nil {
			s.d.log.Error("message not sent", "err", err)
			continue
		}
		for _, addr := range targets {
			_ = s.net.Send(addr, b) // it repeats, and supervisors ask again
		}
	}
}

// waitingSpare answers at the liveness socket of a spare that waits for a place. It has no halves to restart.
func waitingSpare(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == restartPath {
		half.WriteJSON(w, RestartAnswer{Result: resultUnchanged("this node waits for a place, and runs no halves: restart its daemon instead")})
	}
}
