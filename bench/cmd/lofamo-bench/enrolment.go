package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/fleet"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
)

// enrolments measures clusters that begin without nodes: all nodes enrol at once, and then one after the other joins and
// leaves.
func enrolments(ctx context.Context, o options) error {
	o.out.f("\n### Enrolment\n\nA cluster begins without nodes. *All*: so many agents start at once, each makes its keys, enrols with a " +
		"token over TLS, gets certificates and a place, and reports, until the map calls all nodes, and then all links, NORMAL. *Join*: the " +
		"same for one more agent, whose links come up too; then it leaves, and the next one joins. Emulated agents start their halves 100 ms " +
		"after the order of their place; preset default.\n\n")
	o.out.f("| nodes | all enrolled | all NORMAL | all links NORMAL | joins | to NORMAL: median | p99 | most | to NORMAL links: median | " +
		"p99 | most | processor for all, supervisors | emulated nodes |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	type plan struct{ nodes, joins int }
	plans := []plan{{3, 50}, {50, 100}, {500, 100}}
	if o.short {
		plans = []plan{{5, 2}}
	}
	for _, p := range plans {
		if !o.rows.want(printed("%d nodes", p.nodes)) {
			continue
		}
		err := withFleet(ctx, fleet.Config{Enrol: true, Replicas: 3, Preset: config.PresetDefault, Seed: o.seed}, func(f *fleet.Fleet) error {
			return enrol(ctx, o, f, p.nodes, p.joins)
		})
		if err != nil {
			return fmt.Errorf("%d nodes: %w", p.nodes, err)
		}
	}
	return nil
}

// enrolWithin bounds the start of all nodes, and joinWithin one join.
const enrolWithin, joinWithin = 5 * time.Minute, time.Minute

func enrol(ctx context.Context, o options, f *fleet.Fleet, nodes, joins int) (err error) {
	stop := f.Agents(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	token, err := f.Token(ctx, nodes)
	if err != nil {
		return err
	}
	before, here, err := consumed(f)
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, enrolWithin)
	defer cancel()
	begun := time.Now()
	g, enrolling := errgroup.WithContext(starting)
	for i := range nodes {
		g.Go(func() error { return f.NewAgent(fault.NodeID(printed("n%d", i))).Enrol(enrolling, token) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	enrolled := time.Since(begun)
	if err := f.AllNormal(starting, nodes); err != nil {
		return err
	}
	normal := time.Since(begun)
	after, used, err := consumed(f)
	if err != nil {
		return err
	}
	if err := allLinksNormal(starting, f); err != nil {
		return err
	}
	linked := time.Since(begun)
	o.progress.f("%d nodes: enrolled after %s, NORMAL after %s, links after %s\n", nodes, enrolled, normal, linked)
	var joined, links measure.Latencies
	if token, err = f.Token(ctx, joins); err != nil {
		return err
	}
	for i := range joins {
		n, l, err := joinAndLeave(ctx, f, fault.NodeID(printed("j%d", i)), token)
		if err != nil {
			return fmt.Errorf("join %d: %w", i+1, err)
		}
		joined, links = append(joined, n), append(links, l)
	}
	s := func(d time.Duration) string { return printed("%.2f s", d.Seconds()) }
	o.out.f("| %d | %s | %s | %s | %d | %s | %s | %s | %s | %s | %s | %.1f s | %.1f s |\n", nodes, s(enrolled), s(normal), s(linked),
		len(joined), s(joined.Median()), s(joined.P99()), s(joined.Max()), s(links.Median()), s(links.P99()), s(links.Max()),
		(after - before).Seconds(), (used - here).Seconds())
	return nil
}

// allLinksNormal waits until the map calls all link ends NORMAL.
func allLinksNormal(ctx context.Context, f *fleet.Fleet) error {
	return until(ctx, func() (bool, error) {
		r, err := f.Client().AllLinks(ctx, &lofamov1.ListLinksRequest{}, 1000)
		if err != nil {
			return false, err
		}
		for _, l := range r.GetLinks() {
			if l.GetState() != lofamov1.State_NORMAL {
				return false, nil
			}
		}
		return true, nil
	})
}

// until asks every 10 ms.
func until(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// joinAndLeave measures one join, from the start of the agent until the node, and until it and its links, are NORMAL.
func joinAndLeave(ctx context.Context, f *fleet.Fleet, id fault.NodeID, token string) (normal, links time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinWithin)
	defer cancel()
	begun := time.Now()
	a := f.NewAgent(id)
	if err := a.Enrol(ctx, token); err != nil {
		return 0, 0, err
	}
	err = until(ctx, func() (bool, error) {
		n, err := f.Client().GetNode(ctx, string(id))
		if err != nil || n.GetState() != lofamov1.State_NORMAL {
			return false, err
		}
		if normal == 0 {
			normal = time.Since(begun)
		}
		for _, c := range n.GetComponents() {
			if strings.HasPrefix(c.GetName(), "link/") && c.GetState() != lofamov1.State_NORMAL {
				return false, nil
			}
		}
		return true, nil
	})
	links = time.Since(begun)
	if err != nil {
		return 0, 0, err
	}
	return normal, links, f.Leave(ctx, a)
}
