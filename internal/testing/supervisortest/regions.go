package supervisortest

import (
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Regions is the environment of a torus that is divided, along X, into regions with separate replicas, and of their
// parent.
type Regions struct {
	*Cluster

	Names  []string
	Region map[string][]config.Supervisor // replicas by region
	Parent []config.Supervisor
}

// NewRegions creates keys, configurations and agents like New, with Options.Replicas replicas per region.
func NewRegions(t testing.TB, o Options, parents int, names ...string) *Regions {
	t.Helper()
	o.Replicas = max(1, o.Replicas)
	c := New(t, Options{Dims: o.Dims, Preset: o.Preset, Replicas: o.Replicas*len(names) + parents})
	out := &Regions{Cluster: c, Names: names, Region: make(map[string][]config.Supervisor)}
	nodes := slices.Clone(c.Configs[0].Nodes)
	for i := range nodes {
		at, err := grid.ParseCoord(nodes[i].Coord)
		must(t, err)
		nodes[i].Region = names[at.X*len(names)/c.Dims.X]
	}
	var regions []config.RegionEntry
	for k, name := range names {
		entry := config.RegionEntry{Name: name}
		for i := range o.Replicas {
			cfg := c.Configs[k*o.Replicas+i]
			entry.Supervisors = append(entry.Supervisors, config.UpstreamEntry{ID: cfg.ID, GRPC: cfg.GRPC})
		}
		regions = append(regions, entry)
	}
	all := c.Configs
	var upstream []config.UpstreamEntry
	for _, cfg := range all[len(names)*o.Replicas:] {
		upstream = append(upstream, config.UpstreamEntry{ID: cfg.ID, GRPC: cfg.GRPC})
	}
	group := func(list []config.Supervisor) {
		var members string
		var replicas []config.ReplicaEntry
		for _, cfg := range list {
			if members != "" {
				members += ","
			}
			members += cfg.ID + "=" + cfg.Etcd.PeerURL
			replicas = append(replicas, config.ReplicaEntry{ID: cfg.ID, GRPC: cfg.GRPC, Report: cfg.Report, HTTP: cfg.HTTP})
		}
		for i := range list {
			list[i].Nodes, list[i].Regions, list[i].Replicas, list[i].Etcd.InitialCluster = nodes, regions, replicas, members
		}
	}
	for k, name := range names {
		list := slices.Clone(all[k*o.Replicas : (k+1)*o.Replicas])
		group(list)
		for i := range list {
			list[i].Region, list[i].Upstream = name, upstream
		}
		out.Region[name] = list
	}
	out.Parent = slices.Clone(all[len(names)*o.Replicas:])
	group(out.Parent)
	for i := range out.Parent {
		out.Parent[i].Report = ""
		for j := range out.Parent[i].Replicas {
			out.Parent[i].Replicas[j].Report = ""
		}
	}
	return out
}

// Live makes the agents send digests to the first replica of their region, until the returned function is called.
// Dead nodes send nothing, and their neighbours report their links silent.
func (r *Regions) Live(t testing.TB, period time.Duration, dead func(fault.NodeID) bool) (stop func()) {
	t.Helper()
	of := make(map[fault.NodeID]string)
	at := make(map[fault.NodeID]grid.Coord)
	for _, n := range r.Parent[0].Nodes {
		of[n.NodeID()] = r.Region[n.Region][0].Report
		at[n.NodeID()], _ = grid.ParseCoord(n.Coord)
	}
	return Every(period, func() {
		for id, a := range r.Agents {
			if !dead(id) {
				a.digest(t, of[id], r.Dims, at[id], dead)
			}
		}
	})
}

// Speak makes the agents selected by speaks send digests to a replica, with all links working, until the returned
// function is called.
func (c *Cluster) Speak(t testing.TB, period time.Duration, to string, speaks func(fault.NodeID) bool) (stop func()) {
	t.Helper()
	return Every(period, func() {
		for rank := range c.Dims.Nodes() {
			if a := c.Agents[fault.DefaultNodeID(c.Dims.At(rank))]; speaks(a.ID) {
				a.digest(t, to, c.Dims, c.Dims.At(rank), func(fault.NodeID) bool { return false })
			}
		}
	})
}

// Mourn is Speak for all nodes that are not dead. Their links to dead nodes are silent.
func (c *Cluster) Mourn(t testing.TB, period time.Duration, to string, dead func(fault.NodeID) bool) (stop func()) {
	t.Helper()
	return Every(period, func() {
		for rank := range c.Dims.Nodes() {
			if a := c.Agents[fault.DefaultNodeID(c.Dims.At(rank))]; !dead(a.ID) {
				a.digest(t, to, c.Dims, c.Dims.At(rank), dead)
			}
		}
	})
}

// Every calls do at once, and again after each period until the returned function has been called.
func Every(period time.Duration, do func()) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			do()
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// digest sends a digest: both halves live, and links to dead nodes are silent.
func (a *Agent) digest(t testing.TB, to string, dims grid.Dims, at grid.Coord, dead func(fault.NodeID) bool) {
	links := []fault.Observation{{Component: fault.ComponentDNP, State: fault.Normal, Kind: fault.KindSelf},
		{Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindWatchdog}}
	for _, d := range dims.Links() {
		peer, _ := dims.Neighbour(at, d)
		o := fault.Observation{Component: fault.Link(d), State: fault.Normal, Kind: fault.KindSelf}
		if dead(fault.DefaultNodeID(peer)) {
			o.State, o.Kind = fault.Failed, fault.KindSilence
		}
		links = append(links, o)
	}
	_, b := a.Report(t, fault.HalfDNP, true, links...)
	a.Send(t, to, b)
	host := []fault.Observation{{Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindSelf},
		{Component: fault.ComponentDNP, State: fault.Normal, Kind: fault.KindWatchdog}}
	if more := a.suffers.Load(); more != nil {
		host = append(host, *more)
	}
	_, b = a.Report(t, fault.HalfHost, true, host...)
	a.Send(t, to, b)
}

// Suffer adds an observation to the host half's later digests from Live, Speak and Mourn.
func (a *Agent) Suffer(o fault.Observation) { a.suffers.Store(&o) }
