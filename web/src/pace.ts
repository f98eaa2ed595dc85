const wantedFrame = 28 // milliseconds that a frame is to take at most
const leastSharp = 0.5
const frames = 3 // the shortest of so many tells how long one takes: others may have waited for something else

/**
 * Pace finds how sharply to draw while something moves: where the processor draws, fewer pixels are fewer milliseconds. Where they are not (the display is
 * slow, or saves its battery), it is drawn with every pixel. Of one movement; a function of how long frames were waited for.
 */
export class Pace {
  sharp = 1 // of the pixels along each side
  private least = Infinity // milliseconds, of the frames seen
  private seen = 0
  private whole = 0 // milliseconds of a frame with every pixel; 0: fewer were not tried
  private futile = false

  /** took receives the time that a frame took. */
  took(ms: number): void {
    if (this.futile) return
    this.least = Math.min(this.least, ms)
    if (++this.seen < frames) return
    const took = this.least
    this.least = Infinity
    this.seen = 0
    if (took < wantedFrame) return
    if (!this.whole) {
      this.whole = took
      this.sharp = 0.7 // half of the pixels: of a smaller step it is hard to say whether it was of use
    } else if (this.sharp > leastSharp) {
      this.futile = took > 0.9 * this.whole
      this.sharp = this.futile ? 1 : leastSharp
    }
  }
}
