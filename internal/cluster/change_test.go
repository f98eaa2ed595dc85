package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestChangesOfTwoProgramsBothStay: cluster.json has the changes of two programs that have read it before either wrote it.
func TestChangesOfTwoProgramsBothStay(t *testing.T) {
	first := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	first.ports.release()
	second, err := Load(first.dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []*Cluster{first, second} {
		if id, _, err := c.PlanSupervisor(); err != nil || id != SupervisorID(1+i) {
			t.Fatalf("planned %q, %v", id, err)
		}
	}
	if err := first.ForgetSupervisor(t.Context(), "sup-1"); err != nil {
		t.Fatal(err)
	}
	now, err := Load(first.dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := now.Supervisor("sup-2"); err != nil || len(now.info.Supervisors) != 2 {
		t.Errorf("supervisors %+v: want sup-0 and sup-2", now.info.Supervisors)
	}
}

// TestNothingStartsDuringStop: a program that starts a replica or a daemon waits for another one that stops the cluster.
func TestNothingStartsDuringStop(t *testing.T) {
	bin := shortTempDir(t)
	script(t, bin, agentProgram, "exec sleep 600\n")
	script(t, bin, supervisorProgram, "exec sleep 600\n")
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, BinDir: bin})
	c.ports.release()
	t.Cleanup(func() { _ = c.Stop(context.Background()) })
	for name, start := range map[string]func() error{
		"a replica": func() error { return c.StartSupervisor("sup-0") },
		"a daemon":  func() error { return c.StartRun("n0-0-0") },
		"a step of scale": func() error {
			return c.step(func() (Scaled, error) { return Scaled{}, os.WriteFile(filepath.Join(c.dir, "began"), nil, 0o644) }, func(Scaled) {})
		},
	} {
		unlock, err := lockDir(c.dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- start() }()
		select {
		case err := <-done:
			t.Errorf("%s started while another program had the directory: %v", name, err)
			done <- err
		case <-time.After(300 * time.Millisecond):
		}
		unlock()
		<-done
	}
}

// TestStepOfScaleEndsWithCluster: another program has stopped the cluster between two steps.
func TestStepOfScaleEndsWithCluster(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.ports.release()
	err := c.step(func() (Scaled, error) { return Scaled{}, errors.New("it was done all the same") }, func(Scaled) {})
	if err == nil || err.Error() != "the cluster was stopped" {
		t.Error(err)
	}
}

// TestReadersSeeNoChangeByHold: one goroutine may read the list of nodes while another one stops a replica.
func TestReadersSeeNoChangeByHold(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.ports.release()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			if _, err := c.Node("n1-0-0"); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 10 {
		if err := c.KillSupervisor(t.Context(), "sup-0"); err != nil {
			t.Error(err)
		}
		if err := c.change(func() error { return nil }); err != nil {
			t.Error(err)
		}
	}
	<-done
}
