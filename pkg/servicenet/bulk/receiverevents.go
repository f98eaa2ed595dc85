package bulk

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// ReceiverEvent is an input of a receiver: Announced, Arrived, Consumed, Cancel or Tick.
type ReceiverEvent interface{ receiverEvent() }

// Announced is a BulkAnnounce that the half has signed, and the way by which it came.
type Announced struct {
	Message *lofamov1.BulkAnnounce
	Way     Way
}

// Arrived is a packet for which IsChunk holds. The receiver keeps no reference to the packet.
type Arrived struct {
	Packet []byte
	Way    Way
}

// Consumed says that the consumer has taken so many of the delivered chunks, those delivered since the
// last Restart; it makes room for more.
type Consumed struct{ Chunks int }

// Cancel ends the transfer.
type Cancel struct{}

func (Tick) receiverEvent()      {}
func (Announced) receiverEvent() {}
func (Arrived) receiverEvent()   {}
func (Consumed) receiverEvent()  {}
func (Cancel) receiverEvent()    {}

// Result is the outcome of a transfer.
type Result uint8

// The results.
const (
	Complete  Result = iota + 1 // all delivered, and the checksum is right
	DataLoss                    // the checksum was wrong twice
	Timeout                     // no message by any way for GiveUp
	Refused                     // the half said no, or cannot be understood
	Cancelled                   // by Cancel
)

var resultNames = [...]string{"", "complete", "data loss", "timeout", "refused", "cancelled"}

func (r Result) String() string {
	if r == 0 || int(r) >= len(resultNames) {
		return fmt.Sprintf("Result(%d)", uint8(r))
	}
	return resultNames[r]
}

// Outcome is the last that a receiver says.
type Outcome struct {
	Result Result
	Why    string
}

// Send is one message to sign and send now, once.
type Send struct {
	Message *lofamov1.Message
	Way     Way
}

// ReceiverOutput lists the shell's actions, in the order of the fields.
type ReceiverOutput struct {
	Restart bool     // the delivered data is void: the object comes again from the first chunk
	Deliver [][]byte // the next chunks in order; the receiver keeps no reference
	Send    []Send
	Outcome *Outcome // set in the last step
	Wake    time.Time
}

// Progress is the progress of a transfer.
type Progress struct {
	Name      string // as announced
	Size      uint64 // bytes; 0: not known yet
	Delivered uint64 // bytes
	Attempt   int    // 1 or 2
	Way       Way
	Window    int           // chunks that may be under way
	RTT       time.Duration // smoothed; 0: no sample on this way

	Received   uint64 // chunks
	Repeated   uint64 // chunks pulled again
	Pulls      uint64
	Changes    uint64 // of the way
	Duplicates uint64 // chunks that were there already, or replayed
	Malformed  uint64 // not a chunk packet, or of the wrong length
	Foreign    uint64 // packets of another transfer or supervisor
	Forged     uint64 // packets that do not open
	Outside    uint64 // chunks ahead of the buffer
	Ignored    uint64 // announcements that do not fit
}
