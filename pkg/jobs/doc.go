// Package jobs is for the processes of a job: they hear of the faults of the nodes that they run on, tell one another what
// cannot wait, and wait for one another, through the host half of their node (seed 003 §4.4.3, §6.1). It carries no data of
// the job's, and starts and ends no processes.
//
//	c, err := jobs.Dial("") // or the path of the node's socket
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	j := c.Job(jobs.Job{Name: "train-4711", Members: []string{"n0-0-0", "n1-0-0"}})
//	go c.WatchFaults(ctx, j.Members, func(f jobs.Faults) error {
//		for _, n := range f.Nodes {
//			log.Print(n.ID, " is ", n.State)
//		}
//		return nil
//	})
//	for step := range steps {
//		compute(step)
//		err := j.Barrier(ctx, "step") // the first time generation 1, then 2, and so on
//		var gone *jobs.GoneError
//		if errors.As(err, &gone) {
//			return rollBack(gone.Nodes)
//		}
//	}
//	return j.Raise(ctx, "found", answer) // all who j.Watch hear it
//
// A host half that is restarted is waited for, and every call goes on by itself: a barrier's arrivals are the same when they come
// twice, and watches begin again and say so (Heard.Again, and a full list of faults). Only what the half itself answers is an
// error, or the end of the context.
package jobs
