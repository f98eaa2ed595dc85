package program

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// gate is a file that can hang.
type gate struct {
	open chan struct{}
	bytes.Buffer
}

func (g *gate) Write(b []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(b)
}

func TestLinesComeInOrder(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	w := NewLogQueue(g)
	line := []byte("0\n")
	var want strings.Builder
	for i := range 10 {
		line[0] = byte('0' + i) // the line stays the caller's
		want.WriteString(string(line))
		if n, err := w.Write(line); n != 2 || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if g.String() != want.String() {
		t.Errorf("%q, want %q", g.String(), want.String())
	}
	if _, err := w.Write(line); err != nil || w.Close() != nil {
		t.Error("after Close: want nothing to happen")
	}
}

func TestLogQueueDropsLinesInsteadOfBlocking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		w := NewLogQueue(g)
		_, _ = w.Write([]byte("line\n"))
		synctest.Wait() // that one hangs in the file
		for i := range logLines + 7 {
			_, _ = fmt.Fprintln(w, i)
		}
		close(g.open)
		synctest.Wait()
		_, _ = w.Write([]byte("again\n"))
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if want := fmt.Sprintf("%d\n7 lines of this log were dropped: it was not written in time\nagain\n", logLines-1); !strings.HasSuffix(
			g.String(), want) {
			t.Errorf("ends with %q, want %q", g.String()[max(0, g.Len()-len(want)-10):], want)
		}
	})
}

func TestLogQueueCloseGivesUpOnHungFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		w := NewLogQueue(g)
		_, _ = w.Write([]byte("line\n"))
		if err := w.Close(); err == nil || !strings.Contains(err.Error(), "not written within 1s") {
			t.Errorf("a file that hangs: %v", err)
		}
		close(g.open)
	})
}
