package trial

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// injectable reads a fault in the syntax of `lofamoctl inject`.
func injectable(text string) (cluster.Fault, error) {
	args := strings.Fields(text)
	oneWay := slices.Contains(args, "--one-way")
	return cluster.ParseFault(slices.DeleteFunc(args, func(a string) bool { return a == "--one-way" }), oneWay)
}

// do plays one step.
func (r *runner) do(ctx context.Context, s Step) error {
	switch s.Op {
	case Inject:
		return r.inject(ctx, s)
	case KillDaemon:
		r.print("%s", s)
		id := NodeID(s.At)
		r.daemons = append(r.daemons, id)
		return r.lab.Cluster.KillRun(ctx, id)
	case Restart:
		return r.restart(ctx, s)
	case KillSupervisor, StopSupervisor:
		return r.harmSupervisors(ctx, s)
	case StartSupervisors:
		return r.startSupervisors()
	case ApplyPolicy:
		return r.applyPolicy(ctx)
	case Mask:
		return r.mask(ctx, s)
	case Maintain:
		return r.maintain(ctx, s)
	case Pause:
		select {
		case <-time.After(s.Wait):
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	return fmt.Errorf("step %s: unknown", s.Op)
}

// inject causes a fault, and waits for its name unless supervisors are down.
func (r *runner) inject(ctx context.Context, s Step) error {
	f, err := ParseFault(s.At, s.Fault)
	if err != nil {
		return err
	}
	what, err := injectable(s.Fault)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.truth.Begin(f)
	bound := r.truth.Bound(r.bounds, f)
	outage := r.truth.outage
	r.mu.Unlock()
	r.harmed[coordOf(s.At)] = true
	mark := r.lab.Mark()
	at, err := r.lab.Cluster.Inject(ctx, coordOf(s.At), what)
	if err != nil {
		return err
	}
	r.pending = append(r.pending, injected{f, at, mark, bound, outage})
	if len(r.down) > 0 {
		r.print("%s, while supervisors are down", s)
		return nil
	}
	r.await(ctx)
	return nil
}

// await waits until the map names every pending fault.
func (r *runner) await(ctx context.Context) {
	for _, p := range r.pending {
		allowed := r.underLoad(p.bound * time.Duration(Factor(0)))
		if p.outage {
			// The bounds begin when a leader is back.
			allowed += time.Duration(cluster.Monotonic()-p.at) + r.underLoad(leaderBound)
		}
		waiting, cancel := context.WithTimeout(ctx, max(0, allowed-time.Duration(cluster.Monotonic()-p.at)))
		seen, err := r.lab.Wait(waiting, p.mark, func(s lab.Seen) bool { return r.truth.Named(p.Fault, s.Event) })
		cancel()
		where := fmt.Sprintf("inject %s %s", p.At, p.Text)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, context.DeadlineExceeded):
			r.record.missed(p.label(), r.load.loops, p.bound)
			r.violate(fmt.Sprintf("not named: %s within %s (bound %s)", where, allowed.Round(time.Millisecond), p.bound))
		case err != nil:
			r.violate(fmt.Sprintf("watch: %s: %v", where, err))
		default:
			delay := time.Duration(seen.At - p.at)
			r.record.named(p.label(), r.load.loops, delay, p.bound)
			r.print("%s: named after %s (bound %s): %s %s %s", where, delay.Round(time.Millisecond), p.bound, seen.GetNode(), seen.GetComponent(),
				seen.GetTo())
		}
	}
	r.pending = nil
}

// label is the row of a fault in the record.
func (p injected) label() string {
	words := strings.Fields(p.Text)
	name := words[0]
	switch {
	case name == "sensor":
		name += " " + words[1]
	case slices.Contains(words, "--one-way"):
		name += " --one-way"
	}
	if p.outage {
		name += ", beside an outage"
	}
	return name
}

// restart has the daemon of a node restart both halves.
func (r *runner) restart(ctx context.Context, s Step) error {
	r.mu.Lock()
	r.truth.Restarting()
	r.mu.Unlock()
	bin, err := cluster.FindBinaries(r.o.BinDir)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	agent := exec.CommandContext(bounded, filepath.Join(bin, "lofamo-agent"), "restart", "--config",
		filepath.Join(r.lab.Cluster.Dir(), "nodes", NodeID(s.At), "agent.yaml"))
	begun := time.Now()
	out, err := agent.CombinedOutput()
	if err != nil {
		r.record.Refused++
		r.print("%s: refused: %s", s, strings.TrimSpace(string(out)))
		r.harmed[coordOf(s.At)] = true // a half may not run
		return nil
	}
	r.print("%s: took %s", s, time.Since(begun).Round(time.Millisecond))
	return nil
}

func (r *runner) harmSupervisors(ctx context.Context, s Step) error {
	ids, err := r.targets(ctx, s.Who)
	if err != nil {
		return err
	}
	all := r.lab.Cluster.Info().Supervisors
	lost := maps.Clone(r.down)
	for _, id := range ids {
		lost[id] = true
	}
	r.mu.Lock()
	r.truth.Outage(len(all)-len(lost) < len(all)/2+1)
	r.mu.Unlock()
	for _, id := range ids {
		if s.Op == StopSupervisor {
			err = r.lab.Cluster.SignalSupervisor(id, unix.SIGSTOP)
		} else {
			err = r.lab.Cluster.KillSupervisor(ctx, id)
		}
		if err != nil {
			return err
		}
		r.down[id] = s.Op == StopSupervisor
	}
	r.print("%s (%s)", s, strings.Join(ids, " "))
	return nil
}

// targets returns the supervisors that a step names.
func (r *runner) targets(ctx context.Context, who string) (ids []string, err error) {
	all := r.lab.Cluster.Info().Supervisors
	switch who {
	case "all":
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		return ids, nil
	case "leader":
		bounded, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		list, err := r.lab.Client.ListSupervisors(bounded)
		if err != nil {
			return nil, err
		}
		for _, s := range list.GetSupervisors() {
			if s.GetLeader() {
				return []string{s.GetId()}, nil
			}
		}
		return []string{all[0].ID}, nil // none leads at this moment
	}
	var n int
	if _, err := fmt.Sscan(who, &n); err != nil || n < 0 || n >= len(all) {
		return nil, fmt.Errorf("supervisor %q: want leader, all, or 0 to %d", who, len(all)-1)
	}
	return []string{all[n].ID}, nil
}

// startSupervisors continues stopped supervisors and starts dead ones.
func (r *runner) startSupervisors() error {
	for _, id := range slices.Sorted(maps.Keys(r.down)) {
		var err error
		if r.down[id] {
			err = r.lab.Cluster.SignalSupervisor(id, unix.SIGCONT)
		} else {
			err = r.lab.Cluster.StartSupervisor(id)
		}
		if err != nil {
			return err
		}
		r.print("%s runs again", id)
		delete(r.down, id)
	}
	return nil
}

// heal starts killed daemons and heals all nodes with faults. A half that is just starting refuses: heal tries again
// until ctx ends.
func (r *runner) heal(ctx context.Context) error {
	for _, id := range r.daemons {
		if err := r.lab.Cluster.StartRun(id); err != nil {
			return err
		}
	}
	healed := slices.Concat(r.daemons, slices.Sorted(maps.Keys(r.harmed)))
	r.daemons, r.harmed = nil, map[string]bool{}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for _, node := range healed {
		for {
			err := r.lab.Cluster.Heal(ctx, node)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return err
			case <-tick.C:
			}
		}
	}
	return nil
}

// change makes one call of an operator, and records whether it was acknowledged, refused or unclear.
func (r *runner) change(ctx context.Context, s fmt.Stringer, thing, value string, call func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	err := call(bounded)
	switch status.Code(err) {
	case codes.OK:
		r.ledger.Set(thing, value, true)
		r.print("%s: acknowledged: %s is %q", s, thing, value)
	case codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound, codes.PermissionDenied:
		r.record.Refused++
		r.print("%s: refused: %v", s, err)
	default:
		r.ledger.Set(thing, value, false)
		r.record.Unsure++
		r.print("%s: no clear answer: %v", s, err)
	}
	return ctx.Err()
}

// policyName is the policy that trials change.
const policyName = "trial"

func (r *runner) applyPolicy(ctx context.Context) error {
	r.changes++
	value := fmt.Sprintf("change %d of a trial", r.changes)
	document := fmt.Sprintf(`apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: %s}
spec:
  description: %s
  mode: observe-only
  match: fault.component == "dnp-core" && fault.state == "FAILED"
  steps:
  - {name: cordon, executor: kubernetes.cordon}
`, policyName, value)
	return r.change(ctx, Step{Op: ApplyPolicy}, "policy "+policyName, value, func(ctx context.Context) error {
		_, err := r.operator.ApplyPolicies(ctx, &lofamov1.ApplyPoliciesRequest{Documents: document})
		return err
	})
}

func (r *runner) mask(ctx context.Context, s Step) error {
	r.changes++
	thing, value := fmt.Sprintf("mask %s %s", NodeID(s.At), s.Fault), fmt.Sprintf("change %d of a trial", r.changes)
	req := &lofamov1.SetMaskRequest{Links: []*lofamov1.LinkName{{Node: NodeID(s.At), Direction: s.Fault}}, Masked: true, Reason: value}
	if r.ledger.Value(thing) != "" {
		req.Masked, req.Reason, value = false, "", ""
	}
	return r.change(ctx, s, thing, value, func(ctx context.Context) error {
		_, err := r.operator.SetMask(ctx, req)
		return err
	})
}

func (r *runner) maintain(ctx context.Context, s Step) error {
	r.changes++
	id := NodeID(s.At)
	thing, value := "maintenance "+id, fmt.Sprintf("change %d of a trial", r.changes)
	if r.ledger.Value(thing) != "" {
		return r.change(ctx, s, thing, "", func(ctx context.Context) error {
			_, err := r.operator.EndMaintenance(ctx, &lofamov1.EndMaintenanceRequest{Nodes: []string{id}})
			return err
		})
	}
	return r.change(ctx, s, thing, value, func(ctx context.Context) error {
		_, err := r.operator.SetMaintenance(ctx, &lofamov1.SetMaintenanceRequest{Nodes: []string{id}, Reason: value})
		return err
	})
}

// present returns the values of everything that the ledger may hold.
func (r *runner) present(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	policies, err := r.lab.Client.ListPolicies(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range policies.GetPolicies() {
		if p.GetName() == policyName {
			out["policy "+policyName] = p.GetDescription()
		}
	}
	masks, err := r.lab.Client.ListMasks(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range masks.GetMasks() {
		out[fmt.Sprintf("mask %s %s", m.GetNode(), m.GetDirection())] = m.GetReason()
	}
	nodes, err := r.lab.Client.AllNodes(ctx, &lofamov1.ListNodesRequest{}, 0)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes.GetNodes() {
		if m := n.GetMaintenance(); m != nil {
			out["maintenance "+n.GetId()] = m.GetReason()
		}
	}
	return out, nil
}
