package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The operations on one register: the maintenance mark of a node (its reason, "" for none), or the state of a
// component ("" or SICK).
type opKind uint8

const (
	opRead opKind = iota + 1
	opWrite
	opEnd // the mark is taken away: refused when there is none
)

type opInput struct {
	key   string
	kind  opKind
	value string // to write
}

type opOutput struct {
	value   string // read
	refused bool   // opEnd: there was none
	unknown bool   // nobody knows whether it was done
}

// register is what a history is compared with: each key is a register of its own.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, op := range history {
			key := op.Input.(opInput).key
			byKey[key] = append(byKey[key], op)
		}
		var out [][]porcupine.Operation
		for _, ops := range byKey {
			out = append(out, ops)
		}
		return out
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(opInput), output.(opOutput)
		switch in.kind {
		case opRead:
			return out.value == state, state
		case opWrite:
			return true, in.value
		case opEnd:
			switch {
			case out.unknown:
				return true, ""
			case out.refused:
				return state == "", state
			}
			return state != "", ""
		}
		return false, state
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(opInput), output.(opOutput)
		return fmt.Sprintf("%s kind %d %q → %+v", in.key, in.kind, in.value, out)
	},
}

// history is written by many clients.
type history struct {
	mu    sync.Mutex
	begun time.Time
	ops   []porcupine.Operation
}

func (h *history) now() int64 { return int64(time.Since(h.begun)) }

// add notes an operation. One whose outcome is not known may take effect at any later time.
func (h *history) add(client int, call int64, in opInput, out opOutput) {
	end := h.now()
	if out.unknown {
		end = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
}

func (h *history) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// checkTime bounds the search; histories of this size take some milliseconds.
const checkTime = 30 * time.Second

func (h *history) check() porcupine.CheckResult {
	h.mu.Lock()
	defer h.mu.Unlock()
	return porcupine.CheckOperationsTimeout(register, h.ops, checkTime)
}

// TestRegister: the model that histories are compared with knows right from wrong.
func TestRegister(t *testing.T) {
	read := func(call, end int64, v string) porcupine.Operation {
		return porcupine.Operation{ClientId: 1, Input: opInput{key: "k", kind: opRead}, Call: call, Return: end, Output: opOutput{value: v}}
	}
	write := func(call, end int64, v string, out opOutput) porcupine.Operation {
		return porcupine.Operation{ClientId: 2, Input: opInput{key: "k", kind: opWrite, value: v}, Call: call, Return: end, Output: out}
	}
	end := func(call, ret int64, out opOutput) porcupine.Operation {
		return porcupine.Operation{ClientId: 3, Input: opInput{key: "k", kind: opEnd}, Call: call, Return: ret, Output: out}
	}
	done, lost, refused := opOutput{}, opOutput{unknown: true}, opOutput{refused: true}
	for name, tc := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"what was written is read":          {[]porcupine.Operation{write(0, 1, "a", done), read(2, 3, "a")}, true},
		"during a write either is read":     {[]porcupine.Operation{write(0, 9, "a", done), read(1, 2, ""), read(3, 4, "a")}, true},
		"what was overwritten is read":      {[]porcupine.Operation{write(0, 1, "a", done), write(2, 3, "b", done), read(4, 5, "a")}, false},
		"a write is forgotten":              {[]porcupine.Operation{write(0, 1, "a", done), read(2, 3, "")}, false},
		"time runs back":                    {[]porcupine.Operation{write(0, 9, "a", done), read(1, 2, "a"), read(3, 4, "")}, false},
		"a lost answer: it was done":        {[]porcupine.Operation{write(0, math.MaxInt64, "a", lost), read(2, 3, "a")}, true},
		"a lost answer: it was not done":    {[]porcupine.Operation{write(0, math.MaxInt64, "a", lost), read(2, 3, "")}, true},
		"a lost answer is done and undone":  {[]porcupine.Operation{write(0, math.MaxInt64, "a", lost), read(2, 3, "a"), read(4, 5, "")}, false},
		"an end of nothing is refused":      {[]porcupine.Operation{end(0, 1, refused), write(2, 3, "a", done), end(4, 5, done), read(6, 7, "")}, true},
		"an end of something is refused":    {[]porcupine.Operation{write(0, 1, "a", done), end(2, 3, refused)}, false},
		"an end of nothing is not refused":  {[]porcupine.Operation{end(0, 1, done)}, false},
		"another key's value says nothing":  {[]porcupine.Operation{write(0, 1, "a", done), {Input: opInput{key: "l", kind: opRead}, Call: 2, Return: 3, Output: opOutput{}}}, true},
		"an end whose answer was lost":      {[]porcupine.Operation{write(0, 1, "a", done), end(2, math.MaxInt64, lost), read(4, 5, "")}, true},
		"an end whose answer was lost, not": {[]porcupine.Operation{write(0, 1, "a", done), end(2, math.MaxInt64, lost), read(4, 5, "a")}, true},
	} {
		if got := porcupine.CheckOperations(register, tc.ops); got != tc.want {
			t.Errorf("%s: linearizable %t, want %t", name, got, tc.want)
		}
	}
}

// linearCluster has a leader, clients with both roles at every replica, and agents of which nobody expects a
// digest, so that components keep the state that was reported.
type linearCluster struct {
	*supervisortest.Cluster
	procs []*exec.Cmd
	h     *history
}

func startLinear(t *testing.T) *linearCluster {
	t.Helper()
	c := &linearCluster{Cluster: supervisortest.New(t, supervisortest.Options{Dims: "2x2x2", Replicas: 3, Preset: config.PresetRelaxed})}
	silent := config.Duration(10 * time.Minute)
	for i := range c.Configs {
		c.Configs[i].Periods = &config.PeriodsOverride{DigestPeriod: &silent}
		c.Configs[i].Log.Level = "error"
	}
	for _, cfg := range c.Configs {
		c.procs = append(c.procs, process(t, c.Cluster, cfg))
	}
	c.AwaitLeader(t)
	c.h = &history{begun: time.Now()}
	return c
}

// callTime bounds one call: a stopped process answers nothing.
const callTime = time.Second

// between two calls of one client, and after one that failed: the search for an order grows with what is at
// work at once, and what has no known end is at work for ever.
const (
	between      = 5 * time.Millisecond
	afterFailure = 200 * time.Millisecond
)

// linearNodes are the nodes whose registers are used.
var linearNodes = []string{"n0-0-0", "n1-0-0", "n0-1-0", "n1-1-0", "n0-0-1", "n1-0-1"}

// mark sets and ends marks at one replica until the context ends.
func (c *linearCluster) mark(ctx context.Context, t *testing.T, client, replica int) {
	api := lofamov1.NewFaultSupervisorClient(c.Conn(t, pki.RoleOperator, c.Configs[replica].GRPC))
	rng := rand.New(rand.NewPCG(1, uint64(client))) //nolint:gosec // the order is the machine's in any case
	for n := 0; ctx.Err() == nil; n++ {
		in := opInput{key: "mark/" + linearNodes[rng.IntN(len(linearNodes))], kind: opWrite, value: fmt.Sprintf("%d-%d", client, n)}
		node := in.key[len("mark/"):]
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		call := c.h.now()
		var err error
		if rng.IntN(4) == 0 {
			in.kind, in.value = opEnd, ""
			_, err = api.EndMaintenance(cctx, &lofamov1.EndMaintenanceRequest{Nodes: []string{node}})
		} else {
			_, err = api.SetMaintenance(cctx, &lofamov1.SetMaintenanceRequest{Nodes: []string{node}, Reason: in.value})
		}
		cancel()
		refused := in.kind == opEnd && status.Code(err) == codes.NotFound
		unknown := err != nil && !refused
		if unknown {
			rest(ctx, afterFailure)
		}
		if unknown && strings.Contains(err.Error(), "nothing was changed") {
			continue // its word is held against it: the value must never be read
		}
		c.h.add(client, call, in, opOutput{refused: refused, unknown: unknown})
		rest(ctx, between)
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// report has an agent report one component after the other sick, each until it is COMMITTED.
func (c *linearCluster) report(ctx context.Context, t *testing.T, client int, node string) {
	var targets []string
	for _, cfg := range c.Configs {
		targets = append(targets, cfg.Report)
	}
	a := c.Agents[fault.NodeID(node)]
	for _, comp := range supervisortest.OwnComponents {
		if ctx.Err() != nil {
			return
		}
		in := opInput{key: "component/" + node + "/" + comp.String(), kind: opWrite, value: "SICK"}
		id, b := report(t, a, comp)
		call := c.h.now()
		a.Deliver(t, id, b, targets...)
		c.h.add(client, call, in, opOutput{})
		select {
		case <-ctx.Done():
		case <-time.After(700 * time.Millisecond):
		}
	}
}

// read reads everything at one replica until the context ends. Answers that say that they are old count only
// for who believes them.
func (c *linearCluster) read(ctx context.Context, t *testing.T, client, replica int) {
	api := c.Client(t, c.Configs[replica].GRPC)
	for ctx.Err() == nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		call := c.h.now()
		resp, err := api.ListNodes(cctx, &lofamov1.ListNodesRequest{})
		cancel()
		if err == nil && !resp.GetCluster().GetStale() {
			for _, n := range resp.GetNodes() {
				if !slices.Contains(linearNodes, n.GetId()) {
					continue
				}
				c.h.add(client, call, opInput{key: "mark/" + n.GetId(), kind: opRead}, opOutput{value: n.GetMaintenance().GetReason()})
				for _, comp := range supervisortest.OwnComponents {
					v := ""
					if stateOf(n, comp.String()) == lofamov1.State_SICK {
						v = "SICK"
					}
					c.h.add(client, call, opInput{key: "component/" + n.GetId() + "/" + comp.String(), kind: opRead}, opOutput{value: v})
				}
			}
		}
		rest(ctx, between)
	}
}

func (c *linearCluster) signal(t *testing.T, replica int, sig syscall.Signal) {
	t.Helper()
	if err := c.procs[replica].Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// TestLinearizable: clients at all replicas write and read while leaders are stopped past their lease,
// continued and killed. What any of them reads and does not call old agrees with one order of all that was done.
func TestLinearizable(t *testing.T) {
	c := startLinear(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for replica := range c.Configs {
		wg.Go(func() { c.mark(ctx, t, replica, replica) })
		wg.Go(func() { c.read(ctx, t, 10+replica, replica) })
	}
	for i, node := range linearNodes[:2] {
		wg.Go(func() { c.report(ctx, t, 20+i, node) })
	}
	during := func(d time.Duration) {
		t.Helper()
		select {
		case <-time.After(d):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	for round := range 2 {
		during(time.Second)
		leader := c.AwaitLeader(t)
		c.signal(t, leader, syscall.SIGSTOP)
		during(3 * time.Second) // its lease is of one
		c.signal(t, leader, syscall.SIGCONT)
		during(time.Second)
		leader = c.AwaitLeader(t)
		c.signal(t, leader, syscall.SIGKILL)
		_ = c.procs[leader].Wait()
		during(time.Second)
		c.procs[leader] = process(t, c.Cluster, c.Configs[leader])
		c.AwaitLeader(t)
		t.Logf("round %d: %d operations", round, c.h.len())
	}
	cancel()
	wg.Wait()
	lost := 0
	for _, op := range c.h.ops {
		if op.Output.(opOutput).unknown {
			lost++
		}
	}
	t.Logf("%d operations, the outcome of %d is not known", c.h.len(), lost)
	if got := c.h.check(); got != porcupine.Ok {
		t.Errorf("the history is %s: no order of what was done explains all that was read", got)
		c.explain(t)
	}
}

// explain names the registers whose history has no order.
func (c *linearCluster) explain(t *testing.T) {
	t.Helper()
	for _, part := range register.Partition(c.h.ops) {
		if porcupine.CheckOperationsTimeout(register, part, checkTime) != porcupine.Illegal {
			continue
		}
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		// The shortest beginning that is wrong, and what is just before its end.
		n := 1
		for n < len(part) && porcupine.CheckOperationsTimeout(register, part[:n], checkTime) != porcupine.Illegal {
			n++
		}
		for _, op := range part[max(0, n-12):n] {
			t.Logf("client %d, %s to %s: %s", op.ClientId, time.Duration(op.Call), time.Duration(op.Return), register.DescribeOperation(op.Input, op.Output))
		}
	}
}

// TestStaleReadsAreFound: the same check finds a replica that would answer from its own copy without asking
// anybody. The copy is read straight from the embedded etcd of a follower that stalls now and then.
func TestStaleReadsAreFound(t *testing.T) {
	c := startLinear(t)
	leader := c.AwaitLeader(t)
	follower := (leader + 1) % 3
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.mark(ctx, t, 1, leader) })
	wg.Go(func() { c.readCopy(ctx, t, 2, follower) })
	defer func() {
		cancel()
		wg.Wait()
	}()
	for end := time.Now().Add(supervisortest.Wait); time.Now().Before(end); {
		c.signal(t, follower, syscall.SIGSTOP)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
		}
		c.signal(t, follower, syscall.SIGCONT)
		if got := c.h.check(); got == porcupine.Illegal {
			t.Logf("found among %d operations", c.h.len())
			return
		}
	}
	t.Errorf("reads of a replica's own copy go for linearizable: %d operations", c.h.len())
}

// readCopy is the planted bug.
func (c *linearCluster) readCopy(ctx context.Context, t *testing.T, client, replica int) {
	cfg := c.Configs[replica]
	conf, err := pki.ClientTLS(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, nil)
	if err != nil {
		t.Error(err)
		return
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{cfg.Etcd.ClientURL}, TLS: conf})
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = etcd.Close() }()
	for ctx.Err() == nil {
		for _, node := range linearNodes {
			cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
			call := c.h.now()
			resp, err := etcd.Get(cctx, store.MaintenanceKey(node), clientv3.WithSerializable())
			cancel()
			if err != nil {
				continue
			}
			var m lofamov1.Maintenance
			if len(resp.Kvs) > 0 {
				if err := proto.Unmarshal(resp.Kvs[0].Value, &m); err != nil {
					t.Error(err)
					return
				}
			}
			c.h.add(client, call, opInput{key: "mark/" + node, kind: opRead}, opOutput{value: m.GetReason()})
		}
		rest(ctx, between)
	}
}
