package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/lofamo/lofamo/internal/cluster"
)

// Names of the systems whose members are processes of this program.
const (
	memberlistLAN   = "memberlist"
	memberlistTuned = "memberlist, tuned"
	serfLAN         = "serf"
)

const gossipPort = 7946

// addressOf returns the loopback address of a member: each has its own, as machines have.
func addressOf(member int) string { return fmt.Sprintf("127.0.1.%d", member+1) }

func nameOf(member int) string { return "m" + strconv.Itoa(member) }

func memberOf(name string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "m"))
	if err != nil || !strings.HasPrefix(name, "m") {
		return 0, fmt.Errorf("member %q: want m and a number", name)
	}
	return n, nil
}

// tuned sets memberlist for fast detection on a quick and reliable network.
func tuned(c *memberlist.Config) {
	c.ProbeInterval, c.ProbeTimeout = 200*time.Millisecond, 100*time.Millisecond
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = 3, 2
	c.GossipInterval = 50 * time.Millisecond
	c.TCPTimeout = time.Second
}

// gossipSettings describes a configuration, from its values.
func gossipSettings(c *memberlist.Config) string {
	return fmt.Sprintf("probe every %s, answer within %s, %d indirect checks, suspicion %d × log10(n) probes (maximum × %d), "+
		"gossip every %s to %d, push and pull every %s", c.ProbeInterval, c.ProbeTimeout, c.IndirectChecks, c.SuspicionMult,
		c.SuspicionMaxTimeoutMult, c.GossipInterval, c.GossipNodes, c.PushPullInterval)
}

func gossipConfig(system string, member int) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	if system == memberlistTuned {
		tuned(c)
	}
	c.Name, c.BindAddr, c.BindPort, c.AdvertisePort = nameOf(member), addressOf(member), gossipPort, gossipPort
	c.Logger = log.New(os.Stderr, "", log.LstdFlags|log.Lmicroseconds)
	return c
}

// announcer prints the events of a member's process, a line each: "alive" or "dead", the member, the time.
type announcer struct {
	mu  sync.Mutex
	out io.Writer
}

func (a *announcer) say(name string, alive bool) {
	at := cluster.Monotonic()
	member, err := memberOf(name)
	if err != nil {
		log.Print(err)
		return
	}
	word := "dead"
	if alive {
		word = "alive"
	}
	a.mu.Lock()
	_, err = fmt.Fprintf(a.out, "%s %d %d\n", word, member, at)
	a.mu.Unlock()
	if err != nil {
		os.Exit(1) // the run has ended
	}
}

func (a *announcer) NotifyJoin(n *memberlist.Node)  { a.say(n.Name, true) }
func (a *announcer) NotifyLeave(n *memberlist.Node) { a.say(n.Name, false) }
func (a *announcer) NotifyUpdate(*memberlist.Node)  {}

// parseEvent reads a line of an announcer.
func parseEvent(line string) (member int, alive bool, at int64, err error) {
	f := strings.Fields(line)
	if len(f) != 3 || f[0] != "alive" && f[0] != "dead" {
		return 0, false, 0, fmt.Errorf("event %q: want alive or dead, a member and a time", line)
	}
	if member, err = strconv.Atoi(f[1]); err != nil {
		return 0, false, 0, fmt.Errorf("event %q: member: %w", line, err)
	}
	if at, err = strconv.ParseInt(f[2], 10, 64); err != nil {
		return 0, false, 0, fmt.Errorf("event %q: time: %w", line, err)
	}
	return member, f[0] == "alive", at, nil
}

// beMember is the process of one member of memberlist or serf. It runs until it is killed.
func beMember(system string, member, members int) error {
	out := &announcer{out: os.Stdout}
	var join func([]string) (int, error)
	conf := gossipConfig(system, member)
	if system == serfLAN {
		sc := serf.DefaultConfig()
		sc.NodeName, sc.MemberlistConfig, sc.Logger = conf.Name, conf, conf.Logger
		events := make(chan serf.Event, 1024)
		sc.EventCh = events
		s, err := serf.Create(sc)
		if err != nil {
			return fmt.Errorf("start serf: %w", err)
		}
		go announceSerf(out, events)
		join = func(others []string) (int, error) { return s.Join(others, true) }
	} else {
		conf.Events = out
		m, err := memberlist.Create(conf)
		if err != nil {
			return fmt.Errorf("start memberlist: %w", err)
		}
		join = m.Join
	}
	if err := joinOthers(member, members, join); err != nil {
		return err
	}
	select {} // the run kills this process
}

func announceSerf(out *announcer, events <-chan serf.Event) {
	for e := range events {
		me, ok := e.(serf.MemberEvent)
		if !ok {
			continue
		}
		switch me.Type {
		case serf.EventMemberJoin, serf.EventMemberFailed, serf.EventMemberLeave:
			for _, m := range me.Members {
				out.say(m.Name, me.Type == serf.EventMemberJoin)
			}
		default:
		}
	}
}

// joinOthers joins three other members, and tries again until one answers. The first member to start has none.
func joinOthers(member, members int, join func([]string) (int, error)) error {
	var others []string
	for i := 1; i <= min(3, members-1); i++ {
		others = append(others, net.JoinHostPort(addressOf((member+i)%members), strconv.Itoa(gossipPort)))
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		n, err := join(others)
		if n > 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("join %v: %w", others, err)
		}
	}
}

// gossip is memberlist or serf, a process for each member.
type gossip struct {
	cell *cell
	name string
	pids []int
	ends []chan struct{} // closed when all events of the member's last process were read
}

func (g *gossip) start(ctx context.Context) error {
	g.pids, g.ends = make([]int, g.cell.members), make([]chan struct{}, g.cell.members)
	for i := range g.pids {
		if err := g.restart(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (g *gossip) session(member int) int { return g.pids[member] }

func (g *gossip) overlap() bool { return false }
func (g *gossip) note() string  { return "" }

func (g *gossip) restart(ctx context.Context, member int) error {
	if end := g.ends[member]; end != nil {
		select {
		case <-end:
		case <-ctx.Done():
			return fmt.Errorf("restart member %d: its last process: %w", member, ctx.Err())
		}
	}
	g.cell.board.forget(member)
	read, write := io.Pipe()
	cmd, err := session(g.cell.log, write, g.cell.self, "member", g.name, strconv.Itoa(member), strconv.Itoa(g.cell.members))
	if err != nil {
		return err
	}
	g.pids[member] = cmd.Process.Pid
	go func() {
		_ = cmd.Wait() // it ends by SIGKILL
		_ = write.Close()
	}()
	end := make(chan struct{})
	g.ends[member] = end
	go func() {
		defer close(end)
		for s := bufio.NewScanner(read); s.Scan(); {
			other, alive, at, err := parseEvent(s.Text())
			if err != nil || other < 0 || other >= g.cell.members {
				g.cell.board.fail(fmt.Errorf("member %d: event %q: %w", member, s.Text(), err))
				return
			}
			g.cell.board.saw(member, other, alive, at)
		}
	}()
	return nil
}
