package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
)

var (
	joinMoves = flag.Int("joins", 60, "joins and leaves of the campaign")
	joinNodes = flag.Int("joins.nodes", 16, "nodes at its begin, and about so many later")
	joinRate  = flag.Float64("joins.rate", 4, "joins and leaves a second, at most")
	joinSeed  = flag.Uint64("joins.seed", 0, "of its choices; 0: chosen and printed")
)

// Nodes join and leave at random beside deaths, cut cables and deaths of the leader, against three real supervisors. The map
// names every death within its bound, calls no living node and no sound link FAILED, and nothing of nodes that have left stays
// behind.
func TestNodesJoinAndLeaveRealSupervisors(t *testing.T) {
	seed := *joinSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("%d joins and leaves, seed %d", *joinMoves, seed)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+time.Duration(*joinMoves)*time.Second)
	defer cancel()
	d := func(d time.Duration) *config.Duration { return new(config.Duration(d)) }
	f, err := Start(ctx, Config{Enrol: true, Replicas: 3, Preset: config.PresetDefault, Seed: seed, Periods: &config.PeriodsOverride{
		// The agents of a busy machine must have time for their answers.
		ChallengeNode: d(400 * time.Millisecond), ChallengeHalf: d(200 * time.Millisecond), ChallengeSingle: d(800 * time.Millisecond),
		LinkPeriod: d(50 * time.Millisecond), LinkHoldOff: d(500 * time.Millisecond), DigestMisses: new(10),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	stop := f.Agents(ctx)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	c := &campaign{T: t, f: f, truth: newTruth(f), rnd: rand.New(rand.NewPCG(seed, 8))}
	if err := c.run(ctx); err != nil {
		t.Error(err)
	}
	for _, lie := range c.truth.lies {
		t.Error(lie)
	}
	t.Logf("joins: %d, median %s, p99 %s, most %s; leaves: %d; refused: %d", len(c.truth.joins), c.truth.joins.Median(), c.truth.joins.P99(),
		c.truth.joins.Max(), c.leaves, c.refused)
	t.Logf("deaths: %d, named after %s (median), %s (p99), %s (most); deaths of leaders: %d; verdicts excused by a stall of the agents: %d, "+
		"the longest stall %s", len(c.truth.known), c.truth.known.Median(), c.truth.known.P99(), c.truth.known.Max(), len(c.truth.leaders),
		c.truth.excused, f.Stalled(time.Time{}))
}

// campaign is a series of joins, leaves and faults.
type campaign struct {
	*testing.T
	f     *Fleet
	truth *truth
	token string
	uses  int
	next  int

	mu      sync.Mutex // of the fields below
	rnd     *rand.Rand
	leaves  int
	refused int
	errs    []error
	wg      sync.WaitGroup // joins, leaves and faults under way
}

func (c *campaign) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		err := c.f.Client().Watch(ctx, client.WatchOptions{Outage: time.Minute}, func(r *lofamov1.WatchResponse) error {
			for _, ev := range r.GetEvents() {
				c.truth.event(ev)
			}
			return nil
		})
		if ctx.Err() == nil {
			c.fail(fmt.Errorf("watch: %w", err))
		}
	})
	for range *joinNodes {
		c.join(ctx)
	}
	c.wg.Wait()
	if err := c.whole(ctx); err != nil {
		return err
	}
	before, err := c.resources()
	if err != nil {
		return err
	}
	for i := range *joinMoves {
		c.move(ctx)
		if i%7 == 3 {
			c.fault(ctx)
		}
		if i%max(20, *joinMoves/4) == max(10, *joinMoves/8) {
			c.killLeader(ctx)
		}
		pause(ctx, time.Duration(float64(time.Second) / *joinRate * (0.5+c.random().Float64())))
	}
	c.wg.Wait()
	if err := c.whole(ctx); err != nil {
		return err
	}
	after, err := c.resources()
	if err != nil {
		return err
	}
	c.compare(before, after)
	return errors.Join(errors.Join(c.errs...), c.nothingLeft(ctx))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// random returns a source for one goroutine. Its seed is from the source of the campaign.
func (c *campaign) random() *rand.Rand {
	c.mu.Lock()
	defer c.mu.Unlock()
	return rand.New(rand.NewPCG(c.rnd.Uint64(), c.rnd.Uint64()))
}

func (c *campaign) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

// choose returns a node that is well and that nothing happens to, and marks it as busy; nil: there is none.
func (c *campaign) choose(good func(*member) bool) *member {
	rnd := c.random()
	c.truth.mu.Lock()
	defer c.truth.mu.Unlock()
	var all []*member
	for _, m := range c.truth.members {
		if !m.gone && !m.busy && !m.dead && m.normal && (good == nil || good(m)) {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *member) int { return strings.Compare(string(a.id), string(b.id)) })
	m := all[rnd.IntN(len(all))]
	m.busy = true
	return m
}

// living returns the number of nodes that are in the torus, and how many of them are dead.
func (c *campaign) living() (all, dead int) {
	c.truth.mu.Lock()
	defer c.truth.mu.Unlock()
	for _, m := range c.truth.members {
		if !m.gone {
			all++
		}
		if m.dead && !m.gone {
			dead++
		}
	}
	return all, dead
}

// move lets one node join or leave.
func (c *campaign) move(ctx context.Context) {
	all, _ := c.living()
	join := c.random().IntN(2) == 0
	if all <= *joinNodes*3/4 || join && all < *joinNodes*5/4 {
		c.join(ctx)
		return
	}
	if m := c.choose(nil); m != nil {
		c.wg.Go(func() { c.leave(ctx, m) })
	}
}

func (c *campaign) join(ctx context.Context) {
	id := fault.NodeID(fmt.Sprintf("n%d", c.next))
	c.next++
	if c.uses == 0 {
		c.uses = 100
		var err error
		if c.token, err = c.f.Token(ctx, c.uses); err != nil {
			c.fail(err)
			return
		}
	}
	c.uses--
	token := c.token
	m := &member{Agent: c.f.NewAgent(id), begun: time.Now()}
	c.truth.mu.Lock()
	c.truth.members[id] = m
	c.truth.mu.Unlock()
	c.wg.Go(func() {
		if err := m.Enrol(ctx, token); err != nil {
			c.fail(err)
		}
	})
}

// leave lets a node leave, which is dead or well. It tries again while no leader answers.
func (c *campaign) leave(ctx context.Context, m *member) {
	c.truth.mu.Lock()
	m.leaves = true
	c.truth.mu.Unlock()
	err := c.f.Leave(ctx, m.Agent)
	if status.Code(err) == codes.FailedPrecondition { // the torus would be in parts
		c.stays(m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.leaves++
	case status.Code(err) == codes.FailedPrecondition:
		c.refused++
		return
	default:
		c.errs = append(c.errs, fmt.Errorf("%s leaves: %w", m.id, err))
		return
	}
	c.truth.mu.Lock()
	defer c.truth.mu.Unlock()
	m.gone, m.bad = true, time.Now()
}

// stays ends what happened to a node, which is well from now on.
func (c *campaign) stays(m *member) {
	m.Revive()
	c.truth.mu.Lock()
	defer c.truth.mu.Unlock()
	if m.dead {
		m.bad = time.Now()
	}
	m.busy, m.leaves, m.dead = false, false, false
}

// fault lets a node die, or cuts the cables between two nodes, for some seconds.
func (c *campaign) fault(ctx context.Context) {
	rnd := c.random()
	if _, dead := c.living(); dead >= 2 {
		return
	}
	if rnd.IntN(3) == 0 {
		c.cut(ctx, rnd)
		return
	}
	m := c.choose(func(m *member) bool { return !m.sick(time.Now()) })
	if m == nil {
		return
	}
	named := make(chan struct{})
	c.truth.mu.Lock()
	if m.Settled(time.Now(), time.Second) {
		m.near = m.Peers()
	}
	m.killed, m.dead, m.named = time.Now(), true, named
	m.Kill()
	c.truth.mu.Unlock()
	c.wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-named:
		case <-time.After(time.Minute):
			c.fail(fmt.Errorf("%s died at %s, and the map does not know of it a minute later", m.id, m.killed.UTC().Format("15:04:05.000")))
		}
		pause(ctx, time.Duration(rnd.IntN(4000))*time.Millisecond)
		c.truth.mu.Lock()
		m.near = nil
		c.truth.mu.Unlock()
		if rnd.IntN(2) == 0 {
			c.leave(ctx, m)
		} else {
			c.stays(m)
		}
	})
}

// cut cuts the cables between a node and one of its neighbours.
func (c *campaign) cut(ctx context.Context, rnd *rand.Rand) {
	m := c.choose(func(m *member) bool { return !m.sick(time.Now()) })
	if m == nil {
		return
	}
	c.truth.mu.Lock()
	m.busy = false
	c.truth.mu.Unlock()
	all := m.Peers()
	if len(all) < 2 { // the only neighbour is a node's only witness
		return
	}
	peer := all[rnd.IntN(len(all))]
	c.truth.mu.Lock()
	c.truth.cuts[pair(m.id, peer)] = time.Time{}
	c.truth.mu.Unlock()
	c.f.Cut(m.id, peer, true)
	c.wg.Go(func() {
		pause(ctx, time.Duration(1000+rnd.IntN(3000))*time.Millisecond)
		c.f.Cut(m.id, peer, false)
		c.truth.mu.Lock()
		defer c.truth.mu.Unlock()
		c.truth.cuts[pair(m.id, peer)] = time.Now()
	})
}

// killLeader kills the leader, and starts it again some seconds later.
func (c *campaign) killLeader(ctx context.Context) {
	leader, err := c.f.Leader(ctx)
	if err != nil {
		return // none leads, or none answers: another time
	}
	c.truth.mu.Lock()
	c.truth.leaders = append(c.truth.leaders, time.Now())
	c.truth.mu.Unlock()
	if err := c.f.KillReplica(leader); err != nil {
		c.fail(err)
		return
	}
	pause(ctx, 3*time.Second)
	if err := c.f.StartReplica(leader); err != nil {
		c.fail(err)
	}
}

// whole waits until all nodes are NORMAL, and no others are in the topology.
func (c *campaign) whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	all, _ := c.living()
	if err := c.f.AllNormal(ctx, all); err != nil {
		return errors.Join(append(c.errs, err, c.notNormal())...)
	}
	top, err := c.f.Client().GetTopology(ctx)
	if err != nil {
		return err
	}
	if n := len(top.GetNodes()); n != all {
		return fmt.Errorf("the topology has %d nodes: want %d", n, all)
	}
	return nil
}

// notNormal names the nodes that are not NORMAL.
func (c *campaign) notNormal() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := c.f.Client().ListNodes(ctx, &lofamov1.ListNodesRequest{})
	for _, n := range r.GetNodes() {
		if n.GetState() != lofamov1.State_NORMAL {
			err = errors.Join(err, fmt.Errorf("%s at %q is %s: %s", n.GetId(), n.GetCoord(), n.GetState(), n.GetReason()))
		}
	}
	return err
}

// resource is the memory and the descriptors of a supervisor's process.
type resource struct {
	memory int64
	files  int
}

func (c *campaign) resources() (out []resource, err error) {
	for _, p := range c.f.procs {
		u, err := measure.Process(p.Process.Pid)
		if err != nil {
			return nil, err
		}
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Process.Pid))
		if err != nil {
			return nil, err
		}
		out = append(out, resource{u.Resident, len(files)})
	}
	return out, nil
}

// compare reports processes that have grown without a bound.
func (c *campaign) compare(before, after []resource) {
	for i, a := range after {
		c.Logf("supervisor %d: %d MB and %d descriptors before, %d MB and %d after", i, before[i].memory>>20, before[i].files,
			a.memory>>20, a.files)
		if a.memory > before[i].memory+256<<20 || a.files > before[i].files+64 {
			c.Errorf("supervisor %d has grown from %+v to %+v", i, before[i], a)
		}
	}
}

// nothingLeft reports keys of the store that belong to nodes that have left.
func (c *campaign) nothingLeft(ctx context.Context) error {
	leader, err := c.f.Leader(ctx)
	if err != nil {
		return err
	}
	url, conf, err := c.f.Etcd(leader)
	if err != nil {
		return err
	}
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, TLS: conf, DialTimeout: 10 * time.Second, Context: ctx})
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }()
	kvs, err := cl.Get(ctx, "/lofamo/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	c.truth.mu.Lock()
	defer c.truth.mu.Unlock()
	kinds := make(map[string]int)
	for _, kv := range kvs.Kvs {
		parts := strings.Split(string(kv.Key), "/")
		if kinds[parts[3]]++; parts[3] == "inbox" { // it refuses old reports to a later node of that name
			continue
		}
		for _, p := range parts {
			if m := c.truth.members[fault.NodeID(p)]; m != nil && m.gone {
				err = errors.Join(err, fmt.Errorf("the store has %s, and %s has left", kv.Key, p))
			}
		}
	}
	c.Logf("keys of the store: %v", kinds)
	return err
}
