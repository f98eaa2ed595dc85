package jobs

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Job says what a process takes part in.
type Job struct {
	// Name of this run: 1 to 63 of a-z, 0-9 and '-'. Another run wants another name, such as one with the batch system's number: what
	// the nodes remember of barriers is of the name.
	Name string
	// Members are the nodes that it runs on, this one among them, the same at all.
	Members []string
	// Participants is how many processes of it run on this node; 0 is 1.
	Participants int
	// Participant is which of them this is: 1 to 64 of [A-Za-z0-9._-]. Empty: the process id, with its PID namespace, since
	// processes of several containers may all have the id 1.
	Participant string
}

// Member is a process of a job. Its methods may be called from several goroutines.
type Member struct {
	Job
	client *Client

	mu    sync.Mutex
	times map[string]uint64 // that it has been at each barrier
}

// Job returns the member that this process is.
func (c *Client) Job(j Job) *Member {
	if j.Participant == "" {
		j.Participant = participant()
	}
	return &Member{Job: j, client: c, times: make(map[string]uint64)}
}

// participant names this process among all of its node.
func participant() string {
	pid := strconv.Itoa(os.Getpid())
	space, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return pid
	}
	return pid + "." + strings.Trim(space, "pid:[]")
}

// Barrier waits until all participants of all members have come to the barrier of that name as often as this one: its first call
// is generation
// 1. When it fails the next call is of the same generation. The error is a *GoneError when a member is gone, and
// a *MissingError when the context's deadline came first.
func (m *Member) Barrier(ctx context.Context, name string) error {
	m.mu.Lock()
	generation := m.times[name] + 1
	m.mu.Unlock()
	if err := m.BarrierAt(ctx, name, generation); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.times[name] = max(m.times[name], generation)
	return nil
}

// BarrierAt is Barrier with a generation that the job counts itself, from 1, as one must that begins in the middle.
func (m *Member) BarrierAt(ctx context.Context, name string, generation uint64) error {
	what := fmt.Sprintf("barrier %s of %s", name, m.Name)
	if m.Participants < 0 {
		return fmt.Errorf("%s: participants: given %d: want 1 to 256, or 0", what, m.Participants)
	}
	return m.client.persist(ctx, what, func() error {
		req := &lofamov1.BarrierRequest{
			Job: m.Name, Name: name, Generation: generation, Members: m.Members, Participants: uint32(m.Participants), Participant: m.Participant,
		}
		if end, ok := ctx.Deadline(); ok {
			left := time.Until(end)
			req.Wait = durationpb.New(min(max(left-margin(left), time.Millisecond), 24*time.Hour))
		}
		_, err := m.client.api.Barrier(ctx, req, grpc.WaitForReady(true))
		return explain(err)
	})
}

// Raise raises a eureka of the job, of priority 0.
func (m *Member) Raise(ctx context.Context, topic string, body []byte) error {
	return m.client.RaiseEureka(ctx, m.Name, Eureka{Topic: topic, Body: body})
}

// Watch is WatchEureka of the job.
func (m *Member) Watch(ctx context.Context, handle func(Heard) error) error {
	return m.client.WatchEureka(ctx, m.Name, handle)
}

// margin is how much earlier than the caller's deadline the half is to answer, so that it can say who is missing.
func margin(left time.Duration) time.Duration { return min(left/4, 500*time.Millisecond) }
