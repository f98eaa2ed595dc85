package supervisor_test

import (
	"encoding/base64"
	"os"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
)

func TestGossipedReportReachesMap(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Gossip: true})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	events, _ := watch(t, c.Client(t, cfg.GRPC), &lofamov1.WatchRequest{})
	begin(t, events)
	b, err := os.ReadFile(cfg.GossipKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(string(b))
	if err != nil {
		t.Fatal(err)
	}
	a := c.Agents["n0-0-0"]
	member, err := gossip.New(gossip.Config{
		Name: "n0-0-0", Bind: "127.0.0.1:0", Join: []string{cfg.GossipListen}, Key: key, Logger: supervisortest.Logger(t),
		Meta: gossip.Meta{Role: gossip.RoleNode, ID: "n0-0-0", Coord: "0,0,0", ReportAddr: a.Addr()},
	})
	if err != nil {
		t.Fatal(err)
	}
	left := false
	defer func() {
		if !left {
			_ = member.Close()
		}
	}()
	supervisortest.Eventually(t, "the leader in the gossip", func() bool {
		for _, m := range member.Members() {
			if m.Meta.Role == gossip.RoleSupervisor && m.Meta.Leader && m.Meta.ReportAddr == cfg.Report {
				return true
			}
		}
		return false
	})
	// A report that arrives by gossip is acknowledged to the node's service address.
	id, env := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	supervisortest.Eventually(t, "a commit of what was broadcast", func() bool {
		if err := member.Broadcast(env); err != nil {
			return false
		}
		time.Sleep(50 * time.Millisecond) // the next copy is a retry
		return a.Count(id, lofamov1.Ack_COMMITTED) > 0
	})
	if ev := awaitEvent(t, events, "n0-0-0", "temperature", lofamov1.State_SICK); ev.GetPath() != lofamov1.Path_GOSSIP {
		t.Errorf("event %v", ev)
	}
	// memberlist's view is only a hint: the supervisor challenges the node, which stays alive.
	if err := member.Leave(time.Minute); err != nil { // it returns as soon as the word is out
		t.Fatal(err)
	}
	_ = member.Close()
	left = true
	supervisortest.Eventually(t, "a challenge answered", func() bool {
		return !strings.Contains(scrape(t, cfg.HTTP), "lofamo_challenge_answers_total 0")
	})
	node, err := c.Client(t, cfg.GRPC).GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n0-0-0"})
	if err != nil || node.GetState() == lofamov1.State_FAILED {
		t.Errorf("on gossip's word alone: %v, %v", node, err)
	}
}
