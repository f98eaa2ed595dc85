package measure

import (
	"os"
	"testing"
	"time"
)

func TestProcessOfOurselves(t *testing.T) {
	before, err := Process(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if before.Resident < 1<<20 {
		t.Errorf("resident %d bytes", before.Resident)
	}
	after := before
	for x := 1.0; after.CPU <= before.CPU; x *= 1.0000001 { // ends when the kernel has counted a tick
		if after, err = Process(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Process(1 << 30); err == nil {
		t.Error("a process that does not exist has a usage")
	}
}

func TestProcessorTimeGrows(t *testing.T) {
	before, thread := ProcessorTime(), threadTime()
	for begun := time.Now(); ProcessorTime()-before < 2*time.Millisecond; {
		if time.Since(begun) > time.Minute {
			t.Fatal("it stands still")
		}
	}
	if threadTime() == thread {
		t.Error("that of the thread stands still")
	}
}
