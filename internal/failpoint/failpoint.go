// Package failpoint marks the steps of the two halves, of the daemon and of the executor process at which tests
// make something go wrong: every send, receive, commit, restart step and step of an act.
//
// In a program as it is delivered there are none: without the build tag lofamo_failpoint every function here
// is empty and inlined away (off.go, and the tests that hold it). With it a point does what an Order says,
// given through the injection socket of a half or of the daemon, or through a file in the state directory
// that is read once at a start; both only where the configuration allows injection.
package failpoint

import "fmt"

// Point is a step at which something may be made to go wrong.
type Point string

// The points of the halves.
const (
	LinkSend    Point = "link-send"    // a frame goes out by a torus link
	LinkReceive Point = "link-receive" // a packet came by a torus link
	HostSend    Point = "host-send"    // a datagram goes out by the service network
	HostReceive Point = "host-receive" // a datagram came by the service network
	MailSend    Point = "mail-send"    // a message goes to the other half
	MailReceive Point = "mail-receive" // a message of the other half came

	CommitBefore  Point = "commit-before"  // a cell of the copy is about to be stored
	CommitBetween Point = "commit-between" // its first half is, its second is not
	CommitAfter   Point = "commit-after"   // it is stored, and nothing rests on it yet
	SpoolKeep     Point = "spool-keep"     // reports go to the disk's spool

	StartOpened   Point = "start-opened"   // a half that starts has its register file and its mailbox
	StartRestored Point = "start-restored" // and what its copy says
	StartServing  Point = "start-serving"  // and has taken its first step
)

// The points of the daemon, in the order of a restart.
const (
	DaemonDetected  Point = "daemon-detected"  // a half is to be ended
	DaemonGone      Point = "daemon-gone"      // it is gone for certain
	DaemonAnnounced Point = "daemon-announced" // the neighbours were told
	DaemonStarted   Point = "daemon-started"   // a new one was started
)

// The points of a small file that is replaced: of an executor process' ledger, and of what halves and daemons keep, where they come by
// them beside their own points.
const (
	FileWritten Point = "file-written" // the new file is on the disk beside the old one
	FileRenamed Point = "file-renamed" // it has the old one's name, and the directory is not on the disk
)

// FilePoints lists the points of a file that is replaced.
func FilePoints() []Point { return []Point{FileWritten, FileRenamed} }

// The points of an executor process, in the order of an attempt.
const (
	ExecutorAdmitted Point = "executor-admitted" // the attempt is admitted, and nothing of it is written
	ExecutorIntended Point = "executor-intended" // the intent is durable, and nothing is done
	ExecutorFenced   Point = "executor-fenced"   // the token was looked at for the last time, and nothing is done
	ExecutorActed    Point = "executor-acted"    // it is done, and its end is not durable
	ExecutorEnded    Point = "executor-ended"    // its end is durable, and nobody was told
)

// ExecutorPoints lists the points of an executor process.
func ExecutorPoints() []Point {
	return []Point{ExecutorAdmitted, ExecutorIntended, ExecutorFenced, ExecutorActed, ExecutorEnded}
}

// The points of an executor that calls servers, webhooks, Alertmanagers and an executor process, in the order of an attempt.
const (
	CallAdmitted Point = "call-admitted" // the attempt is admitted, and nobody was asked anything
	CallLooked   Point = "call-looked"   // the receiver has said what became of an attempt before
	CallSending  Point = "call-sending"  // the receiver is about to be told
	CallSent     Point = "call-sent"     // it has been told, and its answer is not known
	CallEnded    Point = "call-ended"    // the outcome is known, here alone
)

// CallPoints lists the points of an executor that calls.
func CallPoints() []Point {
	return []Point{CallAdmitted, CallLooked, CallSending, CallSent, CallEnded}
}

// The points of an act that a response has a node make, in its recovery daemon, in the order of the act. Nothing but an order
// passes them, so that they are not among Points.
const (
	ActAdmitted Point = "act-admitted" // it is kept that the attempt is under way, and nothing is done
	ActNoted    Point = "act-noted"    // what the next attempt has to know is kept, and nothing is done
	ActMade     Point = "act-made"     // it is done, and how it ended is not kept
	ActKept     Point = "act-kept"     // that is kept
)

// The points of the supervisor that has a node act.
const (
	NodeOrder   Point = "node-order"   // an order to act, or a change of a mask, is about to be sent or committed
	NodeOrdered Point = "node-ordered" // it was
	NodeHeard   Point = "node-heard"   // the agent's word has come, and nobody knows it
)

// The points of the executor at Kubernetes.
const (
	KubernetesRead    Point = "kubernetes-read"    // the node is about to be read
	KubernetesWrite   Point = "kubernetes-write"   // a write, or an event, is about to be sent
	KubernetesSend    Point = "kubernetes-send"    // it was sure a moment ago that this supervisor leads, and the request leaves
	KubernetesWritten Point = "kubernetes-written" // it was sent, and nobody has looked at the answer
	KubernetesEvict   Point = "kubernetes-evict"   // the eviction of one pod is about to be sent
	KubernetesEvicted Point = "kubernetes-evicted" // it was sent, and nobody has looked at the answer
)

// KubernetesPoints lists the points of the executor at Kubernetes; ExecutorFenced is one of them.
func KubernetesPoints() []Point {
	return []Point{KubernetesRead, KubernetesWrite, KubernetesEvict, ExecutorFenced, KubernetesSend, KubernetesWritten, KubernetesEvicted}
}

// The points of the leader's responder, in the order of an attempt.
const (
	ResponderDecided   Point = "responder-decided"   // records are about to be committed
	ResponderCommitted Point = "responder-committed" // they are, and nothing of them is begun
	ResponderStarting  Point = "responder-starting"  // an executor is about to be asked
	ResponderEnded     Point = "responder-ended"     // it has answered, and nobody was told
	ResponderResult    Point = "responder-result"    // its answer is about to be committed
)

// ResponderPoints lists the points of the leader's responder.
func ResponderPoints() []Point {
	return []Point{ResponderDecided, ResponderCommitted, ResponderStarting, ResponderEnded, ResponderResult}
}

// Action is what a point does.
type Action uint8

// The actions. Those after Double happen inside Hit; the caller does Drop, Corrupt and Double.
const (
	Pass    Action = iota // nothing
	Drop                  // the step is left out
	Corrupt               // with a bit flipped
	Double                // twice
	Delay                 // later
	Hang                  // never: the caller blocks for ever, with the locks that it holds
	Spin                  // never: it computes for ever
	Crash                 // the process is killed (signal 9)
	Panic                 // the process panics
	Exit                  // the process exits with a failure
	Stop                  // the process stands still (signal 19) until somebody has it go on (signal 18)
	Hold                  // the caller waits, the process goes on, until a Gate lets it through
)

var actionNames = [...]string{Pass: "pass", Drop: "drop", Corrupt: "corrupt", Double: "double", Delay: "delay", Hang: "hang",
	Spin: "spin", Crash: "crash", Panic: "panic", Exit: "exit", Stop: "stop", Hold: "hold"}

// String returns the action's name.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// ParseAction reads the name of an action that does something.
func ParseAction(s string) (Action, error) {
	for a, name := range actionNames {
		if name == s && Action(a) != Pass {
			return Action(a), nil
		}
	}
	return Pass, fmt.Errorf("action: given %q: want drop, corrupt, double, delay, hang, spin, crash, panic, exit, stop or hold", s)
}

// Order is what is wanted of a point, as JSON: {"point":"link-send","action":"delay","delay_ms":20,"skip":3,"times":2}.
type Order struct {
	Point   Point  `json:"point"`
	Action  string `json:"action"`
	DelayMS int    `json:"delay_ms,omitempty"` // with delay
	Skip    int    `json:"skip,omitempty"`     // so many pass first
	Times   int    `json:"times,omitempty"`    // how often; 0: once
	Gate    string `json:"gate,omitempty"`     // with hold: the path of the Gate's socket
}

// Points lists the points of the halves and of the daemon.
func Points() (halves, daemon []Point) {
	return []Point{
			LinkSend, LinkReceive, HostSend, HostReceive, MailSend, MailReceive,
			CommitBefore, CommitBetween, CommitAfter, SpoolKeep, StartOpened, StartRestored, StartServing,
		}, []Point{
			DaemonDetected, DaemonGone, DaemonAnnounced, DaemonStarted,
		}
}

// ActPoints lists the points of acts.
func ActPoints() []Point {
	return []Point{ActAdmitted, ActNoted, ActMade, ActKept, NodeOrder, NodeOrdered, NodeHeard}
}

// File returns the name of the file in a state directory that arms the points of a process at its start:
// of a half ("host", "dnp"), of the daemon ("run") or of an executor process ("executor").
func File(who string) string { return "failpoint." + who }
