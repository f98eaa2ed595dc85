package cluster

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// TestJoinWaitsWhileNoSupervisorAnswers: supervisors that hang have until the end of --wait, as those that cannot be reached.
func TestJoinWaitsWhileNoSupervisorAnswers(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Nodes.Nodes = []*lofamov1.Node{{Id: "n1", State: lofamov1.State_NORMAL}}
	server := clienttest.Serve(t, dir, m)
	server.Refuse(status.Error(codes.DeadlineExceeded, "no answer in time"))
	c, err := client.New(client.Config{Targets: []string{server.Address}, TLS: clienttest.ClientTLS(t, dir), TryTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var out bytes.Buffer
	looks := 0
	a := &command.App{Env: command.Env{Stdout: &out, Now: func() time.Time {
		if looks++; looks == 3 { // at the begin, and before each try
			server.Refuse(nil)
		}
		return time.Unix(1e9, 0)
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err = awaitNormal(ctx, a, command.Session{Client: c}, "n1", time.Minute)
	if err != nil || !strings.Contains(out.String(), "n1 is NORMAL") {
		t.Errorf("%q, %v: want that the node is NORMAL", out.String(), err)
	}
}
