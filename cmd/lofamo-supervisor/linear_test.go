package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/checksum"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The operations on one register: the maintenance mark of a node (its reason, "" for none), or the state of a
// component ("" or SICK).
type opKind uint8

const (
	opRead opKind = iota + 1
	opWrite
	opEnd // ends the mark: refused if there is none
)

type opInput struct {
	key   string
	kind  opKind
	value string // to write
}

type opOutput struct {
	value   string // read
	refused bool   // opEnd: there was none
	unknown bool   // the outcome is unknown
}

// register is the model for histories: each key is a separate register.
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

// history records the operations of many clients.
type history struct {
	mu    sync.Mutex
	begun time.Time
	ops   []porcupine.Operation
}

func (h *history) now() int64 { return int64(time.Since(h.begun)) }

// add records an operation. An operation with an unknown outcome may take effect at any later time.
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
const checkTime = 2 * time.Minute

func (h *history) check() porcupine.CheckResult {
	h.mu.Lock()
	defer h.mu.Unlock()
	return porcupine.CheckOperationsTimeout(register, thin(settle(h.ops)), checkTime)
}

// settle bounds operations with unknown outcomes: each write that may take effect at any later time doubles the
// search. If the written value was read, the write took effect before that read. If no client read it, settle drops
// the write. A dropped write may have created a mark for an end, so ends of its key become unknown. Every value is
// written once.
func settle(ops []porcupine.Operation) []porcupine.Operation {
	lost := func(op porcupine.Operation) bool {
		return op.Input.(opInput).kind == opWrite && op.Output.(opOutput).unknown
	}
	type written struct{ key, value string }
	read := make(map[written]int64) // time of the first known read
	unread := make(map[string]bool) // keys
	for _, op := range ops {
		if in := op.Input.(opInput); in.kind == opRead {
			w := written{in.key, op.Output.(opOutput).value}
			if first, ok := read[w]; !ok || op.Return < first {
				read[w] = op.Return
			}
		}
	}
	for _, op := range ops {
		in := op.Input.(opInput)
		if _, ok := read[written{in.key, in.value}]; !ok && lost(op) {
			unread[in.key] = true
		}
	}
	var out []porcupine.Operation
	for _, op := range ops {
		in, o := op.Input.(opInput), op.Output.(opOutput)
		if lost(op) {
			first, ok := read[written{in.key, in.value}]
			if !ok {
				continue
			}
			if first > op.Call { // otherwise it was read before it was written: the search finds that
				op.Return = first
			}
		}
		if in.kind == opEnd && !o.refused && unread[in.key] {
			o.unknown = true
			op.Output = o
		}
		out = append(out, op)
	}
	return out
}

// thin drops redundant reads: the search doubles with every long read, such as one that waits at a stopped replica. A
// read within the time of an equal read makes the longer one redundant. A value that is written once holds for one
// interval: the read that ended first and the one that began last bound it.
func thin(ops []porcupine.Operation) []porcupine.Operation {
	type found struct{ key, value string }
	reads := make(map[found][]porcupine.Operation)
	var out []porcupine.Operation
	for _, op := range ops {
		if in := op.Input.(opInput); in.kind == opRead {
			f := found{in.key, op.Output.(opOutput).value}
			reads[f] = append(reads[f], op)
		} else {
			out = append(out, op)
		}
	}
	for f, same := range reads {
		slices.SortFunc(same, func(a, b porcupine.Operation) int {
			return cmp.Or(cmp.Compare(a.Return, b.Return), cmp.Compare(b.Call, a.Call))
		})
		kept := same[:1]
		for _, op := range same[1:] {
			if op.Call > kept[len(kept)-1].Call {
				kept = append(kept, op)
			}
		}
		if f.value != "" && len(kept) > 2 {
			kept = []porcupine.Operation{kept[0], kept[len(kept)-1]}
		}
		out = append(out, kept...)
	}
	return out
}

// TestRegisterModelAcceptsLegalHistoriesOnly: the model accepts legal histories and rejects illegal ones.
func TestRegisterModelAcceptsLegalHistoriesOnly(t *testing.T) {
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
		"what was written is read":         {[]porcupine.Operation{write(0, 1, "a", done), read(2, 3, "a")}, true},
		"during a write either is read":    {[]porcupine.Operation{write(0, 9, "a", done), read(1, 2, ""), read(3, 4, "a")}, true},
		"what was overwritten is read":     {[]porcupine.Operation{write(0, 1, "a", done), write(2, 3, "b", done), read(4, 5, "a")}, false},
		"a write is forgotten":             {[]porcupine.Operation{write(0, 1, "a", done), read(2, 3, "")}, false},
		"time runs back":                   {[]porcupine.Operation{write(0, 9, "a", done), read(1, 2, "a"), read(3, 4, "")}, false},
		"a lost answer: it was done":       {[]porcupine.Operation{write(0, math.MaxInt64, "a", lost), read(2, 3, "a")}, true},
		"a lost answer: it was not done":   {[]porcupine.Operation{write(0, math.MaxInt64, "a", lost), read(2, 3, "")}, true},
		"a lost answer is done and undone": {[]porcupine.Operation{write(0, math.MaxInt64, "a", lost), read(2, 3, "a"), read(4, 5, "")}, false},
		"an end of nothing is refused": {[]porcupine.Operation{end(0, 1, refused), write(2, 3, "a", done), end(4, 5, done),
			read(6, 7, "")}, true},
		"an end of something is refused":   {[]porcupine.Operation{write(0, 1, "a", done), end(2, 3, refused)}, false},
		"an end of nothing is not refused": {[]porcupine.Operation{end(0, 1, done)}, false},
		"another key's value says nothing": {[]porcupine.Operation{write(0, 1, "a", done),
			{Input: opInput{key: "l", kind: opRead}, Call: 2, Return: 3, Output: opOutput{}}}, true},
		"an end whose answer was lost": {[]porcupine.Operation{write(0, 1, "a", done), end(2, math.MaxInt64, lost), read(4, 5, "")}, true},
		"a lost answer, read at last": {[]porcupine.Operation{write(0, math.MaxInt64, "a", lost), write(2, 3, "b", done),
			read(4, 5, "b"), read(6, 7, "a")}, true},
		"a lost answer, read too early": {[]porcupine.Operation{read(0, 1, "a"), write(2, math.MaxInt64, "a", lost), read(4, 5, "a")}, false},
		"a lost answer is ended":        {[]porcupine.Operation{write(0, math.MaxInt64, "a", lost), end(2, 3, done), read(4, 5, "")}, true},
		"a long read and a short one": {[]porcupine.Operation{write(0, 1, "a", done), read(2, 9, "a"), read(4, 5, "a"),
			write(6, 7, "b", done), read(8, 9, "b")}, true},
		"long reads, too late for one": {[]porcupine.Operation{write(0, 1, "a", done), read(2, 9, "a"), read(3, 8, "a"),
			write(4, 5, "b", done), read(6, 9, "a")}, false},
		"many reads, too early for one": {[]porcupine.Operation{read(0, 1, "a"), write(2, 3, "a", done), read(4, 5, "a"),
			read(6, 7, "a"), read(8, 9, "a")}, false},
		"an end whose answer was lost, not": {[]porcupine.Operation{write(0, 1, "a", done), end(2, math.MaxInt64, lost), read(4, 5, "a")}, true},
	} {
		if got := porcupine.CheckOperations(register, tc.ops); got != tc.want {
			t.Errorf("%s: linearizable %t, want %t", name, got, tc.want)
		}
		if got := porcupine.CheckOperations(register, thin(settle(tc.ops))); got != tc.want {
			t.Errorf("%s: settled and thinned it is linearizable %t, want %t", name, got, tc.want)
		}
	}
}

// TestThinningHistoriesChangesNoVerdict: thin changes no verdict, and settle makes no possible history illegal.
func TestThinningHistoriesChangesNoVerdict(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // one order for all time
	legal := 0
	for n := range 20000 {
		values := []string{""}
		var ops []porcupine.Operation
		for i := range 9 {
			call := rng.Int64N(30)
			op := porcupine.Operation{ClientId: i, Call: call, Return: call + 1 + rng.Int64N(10), Output: opOutput{}}
			lost := rng.IntN(5) == 0
			switch rng.IntN(6) {
			case 0, 1:
				values = append(values, fmt.Sprint(i))
				op.Input, op.Output = opInput{key: "k", kind: opWrite, value: values[len(values)-1]}, opOutput{unknown: lost}
			case 2:
				op.Input, op.Output = opInput{key: "k", kind: opEnd}, opOutput{unknown: lost, refused: !lost && rng.IntN(2) == 0}
			default:
				op.Input, op.Output = opInput{key: "k", kind: opRead}, opOutput{value: values[rng.IntN(len(values))]}
			}
			if op.Output.(opOutput).unknown {
				op.Return = math.MaxInt64
			}
			ops = append(ops, op)
		}
		want := porcupine.CheckOperations(register, ops)
		if got := porcupine.CheckOperations(register, thin(ops)); got != want {
			t.Fatalf("history %d: thinned it is linearizable %t, want %t: %v", n, got, want, ops)
		}
		if want {
			legal++
			if !porcupine.CheckOperations(register, thin(settle(ops))) {
				t.Fatalf("history %d: settled it is not linearizable any more: %v", n, ops)
			}
		}
	}
	if legal < 1000 || legal > 19000 {
		t.Errorf("%d of 20000 histories are linearizable: they try little", legal)
	}
}

// linearCluster has a leader, clients with both roles at every replica, and agents that are not expected to send
// digests, so that components keep the reported state.
type linearCluster struct {
	*supervisortest.Cluster
	program string
	procs   []*exec.Cmd
	h       *history
}

func startLinear(t *testing.T, program string) *linearCluster {
	t.Helper()
	c := &linearCluster{program: program, Cluster: supervisortest.New(t,
		supervisortest.Options{Dims: "2x2x2", Replicas: 3, Preset: config.PresetRelaxed})}
	silent := config.Duration(10 * time.Minute)
	for i := range c.Configs {
		c.Configs[i].Periods = &config.PeriodsOverride{DigestPeriod: &silent}
		c.Configs[i].Log.Level = "error"
	}
	for _, cfg := range c.Configs {
		c.procs = append(c.procs, processOf(t, program, c.Cluster, cfg))
	}
	c.AwaitLeader(t)
	c.h = &history{begun: time.Now()}
	return c
}

// callTime bounds one call: a stopped process answers nothing.
const callTime = time.Second

// between is the pause between two calls of one client, and afterFailure the one after a failed call: the search for
// an order grows with concurrent operations, and an operation without a known end is concurrent to all later ones.
const (
	between      = 5 * time.Millisecond
	afterFailure = 200 * time.Millisecond
)

// linearNodes are the nodes whose registers are used.
var linearNodes = []string{"n0-0-0", "n1-0-0", "n0-1-0", "n1-1-0", "n0-0-1", "n1-0-1"}

// mark sets and ends marks at one replica until the context ends, and pauses while the replica has no answer.
func (c *linearCluster) mark(ctx context.Context, client int, api, viewer lofamov1.FaultSupervisorClient) {
	rng := rand.New(rand.NewPCG(1, uint64(client))) //nolint:gosec // the order is the machine's in any case
	for ctx.Err() == nil {
		in := opInput{key: "mark/" + linearNodes[rng.IntN(len(linearNodes))], kind: opWrite, value: fmt.Sprintf("%d-%d", client, c.h.now())}
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
		// "Nothing was changed" is a promise to check: the value must never be read.
		if !unknown || !strings.Contains(err.Error(), "nothing was changed") {
			c.h.add(client, call, in, opOutput{refused: refused, unknown: unknown})
		}
		for unknown && ctx.Err() == nil && !c.readOne(context.WithoutCancel(ctx), client, viewer) {
			rest(ctx, afterFailure)
		}
		rest(ctx, between)
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// report makes an agent report one component after the other sick, each until it is COMMITTED.
func (c *linearCluster) report(ctx context.Context, t *testing.T, client int, node string, targets []string) {
	for _, comp := range supervisortest.OwnComponents {
		if ctx.Err() != nil {
			return
		}
		c.reportOne(t, client, node, comp, targets)
		select {
		case <-ctx.Done():
		case <-time.After(700 * time.Millisecond):
		}
	}
}

// reportOne makes an agent report one component sick until it is COMMITTED.
func (c *linearCluster) reportOne(t *testing.T, client int, node string, comp fault.Component, targets []string) {
	t.Helper()
	a := c.Agents[fault.NodeID(node)]
	id, b := report(t, a, comp)
	call := c.h.now()
	a.Deliver(t, id, b, targets...)
	c.h.add(client, call, opInput{key: "component/" + node + "/" + comp.String(), kind: opWrite, value: "SICK"}, opOutput{})
}

// read reads everything at one replica until the context ends. Answers marked stale do not count.
func (c *linearCluster) read(ctx context.Context, client int, api lofamov1.FaultSupervisorClient) {
	for ctx.Err() == nil {
		c.readOne(context.WithoutCancel(ctx), client, api)
		rest(ctx, between)
	}
}

// readOne reads everything once, and reports whether the answer was current. A refusal is no lie.
func (c *linearCluster) readOne(ctx context.Context, client int, api lofamov1.FaultSupervisorClient) bool {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	call := c.h.now()
	resp, err := api.ListNodes(ctx, &lofamov1.ListNodesRequest{})
	if err == nil {
		c.note(client, call, resp)
	}
	return err == nil && !resp.GetCluster().GetStale()
}

// note adds an answer to the history.
func (c *linearCluster) note(client int, call int64, resp *lofamov1.ListNodesResponse) {
	if resp.GetCluster().GetStale() {
		return
	}
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

// ambush is a set of reads that wait for a stopped replica to resume.
type ambush struct {
	*linearCluster
	clients []lofamov1.FaultSupervisorClient
}

// ambushers is the number of reads, each on its own connection: at least one must be served before the replica
// notices the loss of its lease.
const ambushers = 16

// prepare connects to a replica while it runs.
func (c *linearCluster) prepare(t *testing.T, replica int) ambush {
	t.Helper()
	a := ambush{linearCluster: c}
	for range ambushers {
		client := c.Client(t, c.Configs[replica].GRPC)
		if _, err := client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{Limit: 1}); err != nil {
			t.Fatal(err)
		}
		a.clients = append(a.clients, client)
	}
	return a
}

// spring starts all reads, resumes the replica once the requests wait there, and returns after all answers.
func (a ambush) spring(t *testing.T, goOn func()) {
	t.Helper()
	var wg sync.WaitGroup
	for i, client := range a.clients {
		wg.Go(func() { a.readOne(t.Context(), ambushed+i, client) })
	}
	rest(t.Context(), 50*time.Millisecond) // lets the requests arrive; late ones would find less
	goOn()
	wg.Wait()
}

// awaitMarks waits until many marks have changed.
func (c *linearCluster) awaitMarks(t *testing.T) {
	t.Helper()
	begin := c.h.now()
	supervisortest.Eventually(t, "marks set and ended", func() bool {
		c.h.mu.Lock()
		defer c.h.mu.Unlock()
		done := 0
		for _, op := range c.h.ops {
			in := op.Input.(opInput)
			if in.kind != opRead && strings.HasPrefix(in.key, "mark/") && op.Call >= begin && op.Return < math.MaxInt64 {
				done++
			}
		}
		return done >= 3*len(linearNodes)
	})
}

// reportTo returns the report addresses of replicas.
func (c *linearCluster) reportTo(replicas []int) []string {
	var out []string
	for _, i := range replicas {
		out = append(out, c.Configs[i].Report)
	}
	return out
}

func others(replica int) []int { return []int{(replica + 1) % 3, (replica + 2) % 3} }

func (c *linearCluster) signal(t *testing.T, replica int, sig syscall.Signal) {
	t.Helper()
	if err := c.procs[replica].Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// leaderStops stops the leader until another leads and has changed many marks, and reads from it as it resumes.
func (c *linearCluster) leaderStops(t *testing.T) {
	t.Helper()
	leader := c.AwaitLeader(t)
	a := c.prepare(t, leader)
	c.signal(t, leader, syscall.SIGSTOP)
	c.AwaitLeader(t, others(leader)...)
	c.awaitMarks(t)
	a.spring(t, func() { c.signal(t, leader, syscall.SIGCONT) })
}

// followerStops stops a follower for a moment with many changes, and reads from it as it resumes.
func (c *linearCluster) followerStops(t *testing.T) {
	t.Helper()
	follower := others(c.AwaitLeader(t))[0]
	a := c.prepare(t, follower)
	c.signal(t, follower, syscall.SIGSTOP)
	c.awaitMarks(t)
	a.spring(t, func() { c.signal(t, follower, syscall.SIGCONT) })
}

// leaderDeposed deletes the election key of a leader that keeps its lease, commits a report at the next leader, and reads from the deposed
// one. The deposed leader ends its term when a quorum tells it that its key is gone. A defective program that asks no quorum answers from
// its old map.
func (c *linearCluster) leaderDeposed(t *testing.T, node string, comp fault.Component) {
	t.Helper()
	leader := c.deposeLeader(t)
	c.AwaitLeader(t, others(leader)...)
	c.reportOne(t, deposer, node, comp, c.reportTo(others(leader)))
	c.readOne(t.Context(), deposer, c.Client(t, c.Configs[leader].GRPC))
}

// deposeLeader deletes the election key of the leader, and returns the leader's index.
func (c *linearCluster) deposeLeader(t *testing.T) int {
	t.Helper()
	for end := time.Now().Add(supervisortest.Wait); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if leader := c.AwaitLeader(t); c.depose(t, leader) {
			return leader
		}
	}
	t.Fatal("no leader's key could be deleted")
	return 0
}

// depose deletes the leader's election key. It returns false if another replica already leads, or if the store refuses the request: on a
// busy machine a lease of a second may end at any time, and the store may change its own leader and lose the request or its answer. A key
// that was deleted all the same deposes one leader more.
func (c *linearCluster) depose(t *testing.T, leader int) bool {
	t.Helper()
	cfg := c.Configs[others(leader)[0]]
	conf, err := pki.ClientTLS(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, nil)
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{cfg.Etcd.ClientURL}, TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = etcd.Close() }()
	checksum.Client(etcd)
	ctx, cancel := context.WithTimeout(t.Context(), supervisortest.Wait)
	defer cancel()
	oldest, err := etcd.Get(ctx, store.ElectionPrefix+"/", clientv3.WithFirstCreate()...)
	if err != nil {
		t.Logf("the leader's key: %v", err)
		return false
	}
	if len(oldest.Kvs) == 0 || string(oldest.Kvs[0].Value) != c.Configs[leader].ID {
		return false
	}
	deleted, err := etcd.Delete(ctx, string(oldest.Kvs[0].Key))
	if err != nil {
		t.Logf("delete the leader's key: %v", err)
		return false
	}
	return deleted.Deleted == 1
}

// TestDeposedLeadersCampaignAgain: a leader that loses its key but keeps its lease campaigns again, even if it has nothing to write.
// Otherwise the cluster has no leader once every replica has lost its key.
func TestDeposedLeadersCampaignAgain(t *testing.T) {
	t.Parallel()
	c := startLinear(t, self(t))
	for range 2 * len(c.Configs) {
		c.deposeLeader(t)
	}
	c.AwaitLeader(t)
}

// The numbers of the clients: writers of marks have the replica's number, and the others count from these.
const (
	readers   = 10
	reporters = 20
	deposer   = 30
	ambushed  = 100
)

// work makes clients at all replicas read, and at some write, until the returned function is called.
func (c *linearCluster) work(t *testing.T, writeAt ...int) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for replica := range c.Configs {
		viewer := c.Client(t, c.Configs[replica].GRPC)
		wg.Go(func() { c.read(ctx, readers+replica, viewer) })
	}
	for _, replica := range writeAt {
		operator, viewer := c.Operator(t, c.Configs[replica].GRPC), c.Client(t, c.Configs[replica].GRPC)
		wg.Go(func() { c.mark(ctx, replica, operator, viewer) })
	}
	if len(writeAt) > 0 {
		for i, node := range linearNodes[:2] {
			wg.Go(func() { c.report(ctx, t, reporters+i, node, c.reportTo(writeAt)) })
		}
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// TestAnswersOfAllReplicasAreLinearizable: clients at all replicas write and read while leaders are stopped past their lease, resumed and
// killed, and followers stopped. All answers that are not marked stale agree with one order of all operations.
func TestAnswersOfAllReplicasAreLinearizable(t *testing.T) {
	t.Parallel()
	c := startLinear(t, self(t))
	end := c.work(t, 0, 1, 2)
	for round := range 2 {
		c.awaitMarks(t)
		c.leaderStops(t)
		c.awaitMarks(t)
		c.followerStops(t)
		c.leaderDeposed(t, linearNodes[2], supervisortest.OwnComponents[round])
		leader := c.AwaitLeader(t)
		c.signal(t, leader, syscall.SIGKILL)
		_ = c.procs[leader].Wait()
		c.AwaitLeader(t, others(leader)...)
		c.awaitMarks(t)
		c.procs[leader] = processOf(t, c.program, c.Cluster, c.Configs[leader])
		c.AwaitLeader(t)
		t.Logf("round %d: %d operations", round, c.h.len())
	}
	end()
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

// explain logs the registers whose history has no legal order.
func (c *linearCluster) explain(t *testing.T) {
	t.Helper()
	for _, part := range register.Partition(c.h.ops) {
		if porcupine.CheckOperationsTimeout(register, thin(settle(part)), checkTime) != porcupine.Illegal {
			continue
		}
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		// The shortest illegal beginning, and its last operations.
		n := 1
		for n < len(part) && porcupine.CheckOperationsTimeout(register, thin(settle(part[:n])), checkTime) != porcupine.Illegal {
			n++
		}
		for _, op := range part[max(0, n-12):n] {
			t.Logf("client %d, %s to %s: %s", op.ClientId, time.Duration(op.Call), time.Duration(op.Return),
				register.DescribeOperation(op.Input, op.Output))
		}
	}
}

// A defect is a change of one source file. The program is built with the changed file in its place (go build -overlay).
type defect struct {
	file  string // from the root of the repository
	after string // stands once in the file
	add   string
}

// build returns the program with the defect.
func (d defect) build(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("../..", d.file))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), d.after); n != 1 {
		t.Fatalf("%s has %q %d times: want it once, or the defect at another place", d.file, d.after, n)
	}
	dir := t.TempDir()
	changed, overlay, program := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "supervisor")
	replaced, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err == nil {
		err = os.WriteFile(overlay, replaced, 0o600)
	}
	if err == nil {
		err = os.WriteFile(changed, []byte(strings.Replace(string(source), d.after, d.after+d.add, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestLinearizabilityCheckDetectsDefects: the checks of TestAnswersOfAllReplicasAreLinearizable detect programs built
// with a defect, each in a scenario that exposes it.
func TestLinearizabilityCheckDetectsDefects(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		defect  defect
		writeAt []int
		provoke func(c *linearCluster, t *testing.T, attempt int)
	}{
		// Writers would reveal the new term.
		{"leader answers without confirming that it still leads", defect{
			"internal/supervisor/engine/read.go", "func (t *term) newest(ctx context.Context) (view.Map, error) {\n",
			"\treturn t.published.reach(ctx, 0, t.done)\n",
		}, nil, func(c *linearCluster, t *testing.T, attempt int) {
			c.leaderDeposed(t, linearNodes[2], supervisortest.OwnComponents[attempt])
		}},
		{"follower returns its own copy as the newest map", defect{
			"internal/supervisor/api/api.go", "m, err := s.cfg.Engine.Map(ctx)\n\tif err == nil {\n\t\treturn own(s.snap(m))\n\t}\n",
			"\tif m, ok := s.cfg.Local(); ok {\n\t\treturn own(s.snap(m))\n\t}\n",
		}, []int{0, 1, 2}, func(c *linearCluster, t *testing.T, _ int) { c.followerStops(t) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			program := tc.defect.build(t)
			c := startLinear(t, program)
			// A leader may notice through its own commit, and a copy may be new by chance.
			for attempt := range supervisortest.OwnComponents {
				end := c.work(t, tc.writeAt...)
				tc.provoke(c, t, attempt)
				end() // pending operations may have been read already
				if c.h.check() == porcupine.Illegal {
					t.Logf("attempt %d: found among %d operations", attempt, c.h.len())
					return
				}
			}
			t.Errorf("not found among %d operations", c.h.len())
		})
	}
}
