package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
)

// A cluster without nodes gets three, which enrol at once; then one joins, one dies and comes back, and one leaves.
func TestEmulatedNodesEnrolAndLeave(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	f, err := Start(ctx, Config{Enrol: true, Replicas: 3, Preset: config.PresetDefault})
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
	token, err := f.Token(ctx, 4)
	if err != nil {
		t.Fatal(err)
	}
	var agents []*Agent
	for i := range 4 {
		a := f.NewAgent(fault.NodeID(fmt.Sprintf("n%d", i)))
		if err := a.Enrol(ctx, token); err != nil {
			t.Fatal(err)
		}
		if agents = append(agents, a); i < 2 {
			continue
		}
		if err := f.AllNormal(ctx, i+1); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.NewAgent("n4").Enrol(ctx, token); err == nil {
		t.Error("a token for four nodes lets a fifth one in")
	}
	agents[1].Kill()
	if err := f.AllNormal(ctx, 3); err != nil {
		t.Fatal(err)
	}
	agents[1].Revive()
	if err := f.AllNormal(ctx, 4); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Client().LeaveNodes(ctx, &lofamov1.LeaveNodesRequest{Nodes: []string{"n2"}, Forget: true}); err != nil {
		t.Fatal(err)
	}
	if agents[2].running() {
		t.Error("n2 has left, and its halves run")
	}
	if err := f.AllNormal(ctx, 3); err != nil {
		t.Fatal(err)
	}
}
