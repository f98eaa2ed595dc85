package measure

import (
	"os"
	"testing"
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
