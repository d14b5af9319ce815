"use strict";

// Timelines are drawn on a canvas; tables sort. The page holds all data and asks for nothing.
(() => {
  const BASE = 18; // height of a row of spans
  const LABEL = 15; // height of a lane's name
  const AXIS = 22;
  const TITLE = 24;
  const LEAST_US = 1; // the closest zoom

  const root = document.documentElement;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const data = JSON.parse(document.getElementById("data").textContent);
  let chosen = null; // the row of the table whose spans stand out

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

  function timeText(us, digits = 3) {
    if (us >= 1e6) return `${(us / 1e6).toPrecision(digits + 1)} s`;
    if (us >= 1e3) return `${Number((us / 1e3).toPrecision(digits + 1))} ms`;
    return `${Number(us.toPrecision(digits))} µs`;
  }

  // A place on the axis, in the unit and with the digits that its ticks need.
  function axisText(us, tick) {
    if (!us) return "0";
    const [scale, unit] = us >= 1e6 ? [1e6, "s"] : us >= 1e3 || tick >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    const digits = clamp(Math.ceil(-Math.log10(tick / scale) - 1e-9), 0, 6);
    return `${(us / scale).toFixed(digits)} ${unit}`;
  }

  // --- unpacking ---

  async function numbersOf(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function unpacked(text) {
    const bytes = await numbersOf(text);
    let at = 0;
    const next = () => {
      let value = 0;
      let scale = 1;
      for (;;) {
        const byte = bytes[at++];
        value += (byte & 127) * scale;
        if (byte < 128) return value;
        scale *= 128;
      }
    };
    let count = 0;
    for (let i = 0; i < bytes.length; i++) if (bytes[i] < 128) count++;
    count /= 3;
    const spans = {
      count,
      start: new Float64Array(count),
      end: new Float64Array(count),
      label: new Uint32Array(count),
      depth: new Uint8Array(count),
      rows: 1,
    };
    let start = 0;
    for (let i = 0; i < count; i++) {
      start += next();
      spans.start[i] = start / 10;
      spans.end[i] = (start + next()) / 10;
      spans.label[i] = next();
    }
    return spans;
  }

  // Spans that lie in another stand one row below it.
  function nest(spans) {
    const open = [];
    for (let i = 0; i < spans.count; i++) {
      while (open.length && open[open.length - 1] <= spans.start[i] + 0.05) open.pop();
      spans.depth[i] = Math.min(open.length, 4);
      spans.rows = Math.max(spans.rows, spans.depth[i] + 1);
      open.push(spans.end[i]);
    }
  }

  async function unpackTimeline(packed) {
    const lanes = [];
    for (const lane of packed.lanes) {
      const spans = await unpacked(lane.spans);
      nest(spans);
      lanes.push({ name: lane.name, device: lane.device, spans });
    }
    const gaps = await unpacked(packed.gaps);
    return { ...packed, lanes, gaps, waits: waitsOf(lanes, packed.labels) };
  }

  // For each row of the table, the spans of host threads that belong to it, in order of time.
  function waitsOf(lanes, labels) {
    const found = new Map();
    lanes.forEach((lane, place) => {
      if (lane.device) return;
      for (let i = 0; i < lane.spans.count; i++) {
        const row = labels[lane.spans.label[i]][2];
        if (row === null) continue;
        if (!found.has(row)) found.set(row, []);
        found.get(row).push({ lane: place, span: i, start: lane.spans.start[i] });
      }
    });
    for (const list of found.values()) list.sort((a, b) => a.start - b.start);
    return found;
  }

  // Place of the first item of a sorted array that is above a value.
  function above(values, value, count = values.length) {
    let low = 0;
    let high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // --- timelines ---

  class Timelines {
    constructor(box, timelines) {
      this.timelines = timelines;
      this.canvas = box.querySelector(".lanes");
      this.overview = box.querySelector(".overview");
      this.tip = box.querySelector(".tip");
      this.said = box.querySelector("#said");
      this.viewText = box.querySelector(".view");
      this.whole = Math.max(...timelines.map((timeline) => timeline.end), LEAST_US);
      this.from = 0;
      this.to = this.whole;
      this.gap = null; // the gap that was asked for last: [timeline, gap]
      this.pending = 0;
      this.layOut();
      this.listen(box);
    }

    // Where every lane stands.
    layOut() {
      let y = AXIS;
      this.places = this.timelines.map((timeline) => {
        const top = y;
        if (timeline.title) y += TITLE;
        const lanes = timeline.lanes.map((lane) => {
          const place = { top: y, base: y + LABEL, height: lane.spans.rows * BASE };
          y += LABEL + place.height + 6;
          return place;
        });
        const device = timeline.lanes.findIndex((lane) => lane.device);
        const band = device < 0 ? [top, y] : [lanes[device].top, y];
        y += 8;
        return { top, lanes, band, bottom: y - 8 };
      });
      this.height = y;
      this.canvas.style.height = `${y}px`;
      this.overviewHeight = Math.max(34, 9 * this.timelines.length);
      this.overview.style.height = `${this.overviewHeight}px`;
    }

    colours() {
      const names = ["paper", "card", "ink", "soft", "rule", "accent", "stripe", "idle", "kernel",
        "copy", "fill", "step", "data", "launch", "wait", "read", "host-code", "capture"];
      this.colour = Object.fromEntries(names.map((name) => [name, colour(name)]));
      this.ofLabels = this.timelines.map((timeline) =>
        timeline.labels.map((label) => this.colour[label[1].replace(" ", "-")] || this.colour.fill));
    }

    sized(canvas, height) {
      const scale = Math.min(devicePixelRatio || 1, 3);
      const width = canvas.clientWidth;
      if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(height * scale);
      }
      const pen = canvas.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, height);
      return [pen, width];
    }

    redraw() {
      if (this.pending) return;
      this.pending = requestAnimationFrame(() => {
        this.pending = 0;
        this.draw();
      });
    }

    draw() {
      this.colours();
      const [pen, width] = this.sized(this.canvas, this.height);
      this.width = width;
      this.pen = pen;
      pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      pen.textBaseline = "middle";
      this.drawAxis();
      this.timelines.forEach((timeline, place) => this.drawTimeline(timeline, place));
      this.drawOverview();
      const length = this.to - this.from;
      this.viewText.textContent = length >= this.whole
        ? `the whole, ${timeText(length)}`
        : `${this.from ? timeText(this.from) : 0} to ${timeText(this.to)}: ${timeText(length)}`;
      this.canvas.dataset.from = this.from;
      this.canvas.dataset.to = this.to;
    }

    x(us) {
      return ((us - this.from) / (this.to - this.from)) * this.width;
    }

    drawAxis() {
      const { pen, width } = this;
      const raw = ((this.to - this.from) / Math.max(2, width / 110)) || 1;
      const power = 10 ** Math.floor(Math.log10(raw));
      const tick = [1, 2, 5, 10].map((times) => times * power).find((value) => value >= raw);
      pen.fillStyle = this.colour.soft;
      pen.strokeStyle = this.colour.rule;
      pen.lineWidth = 1;
      pen.textAlign = "left";
      for (let at = Math.ceil(this.from / tick) * tick; at <= this.to; at += tick) {
        const x = Math.round(this.x(at)) + 0.5;
        pen.beginPath();
        pen.moveTo(x, AXIS - 5);
        pen.lineTo(x, AXIS);
        pen.stroke();
        const text = axisText(at, tick);
        if (x + 4 + pen.measureText(text).width < width) pen.fillText(text, x + 3, AXIS / 2 - 1);
      }
      pen.fillStyle = this.colour.rule;
      pen.fillRect(0, AXIS - 1, width, 1);
    }

    drawTimeline(timeline, place) {
      const { pen, width } = this;
      const where = this.places[place];
      if (timeline.title) {
        pen.fillStyle = this.colour.card;
        pen.fillRect(0, where.top, width, TITLE);
      }
      this.drawSteps(timeline, where);
      this.drawGaps(timeline, place);
      timeline.lanes.forEach((lane, number) => this.drawLane(lane, where.lanes[number], timeline, place));
      this.drawJoins(timeline, place);
      pen.globalAlpha = 1;
      if (timeline.title) {
        pen.fillStyle = this.colour.ink;
        pen.font = `600 ${pen.font}`;
        pen.textAlign = "left";
        pen.fillText(timeline.title, 8, where.top + TITLE / 2);
        pen.font = pen.font.replace(/^(600|bold) /, "");
      }
      this.drawEnd(timeline, where);
    }

    // A timeline that is shorter than the longest one ends with a line.
    drawEnd(timeline, where) {
      if (timeline.end >= this.whole * 0.999) return;
      const x = Math.round(this.x(timeline.end)) + 0.5;
      if (x < 0 || x > this.width) return;
      const { pen } = this;
      pen.strokeStyle = this.colour.ink;
      pen.setLineDash([3, 3]);
      pen.beginPath();
      pen.moveTo(x, where.top);
      pen.lineTo(x, where.bottom);
      pen.stroke();
      pen.setLineDash([]);
      const text = `ends at ${timeText(timeline.end)}`;
      pen.fillStyle = this.colour.soft;
      pen.textAlign = x + pen.measureText(text).width + 10 > this.width ? "right" : "left";
      pen.fillText(text, x + (pen.textAlign === "left" ? 6 : -6), where.top + TITLE / 2);
      pen.textAlign = "left";
    }

    drawSteps(timeline, where) {
      const { pen } = this;
      const steps = timeline.steps;
      const first = Math.max(0, above(steps, this.from) - 1);
      const perPixel = (this.to - this.from) / this.width;
      pen.strokeStyle = this.colour.rule;
      pen.lineWidth = 1;
      const nameEnd = timeline.lanes.length ? pen.measureText(timeline.lanes[0].name).width + 16 : 0;
      let last = -100;
      for (let i = first; i < steps.length && steps[i] <= this.to; i++) {
        const x = Math.round(this.x(steps[i])) + 0.5;
        if (x - last < 6) continue;
        last = x;
        pen.beginPath();
        pen.moveTo(x, where.top + (timeline.title ? TITLE : 0));
        pen.lineTo(x, where.bottom);
        pen.stroke();
        const next = i + 1 < steps.length ? steps[i + 1] : timeline.end;
        if ((next - steps[i]) / perPixel > 54 && x > nameEnd && !timeline.title) {
          pen.fillStyle = this.colour.soft;
          pen.fillText(`step ${i + 1}`, x + 4, where.top + 8 + this.places[0].lanes[0].top - AXIS);
        }
      }
    }

    isFaded(row) {
      return chosen !== null && row !== chosen;
    }

    stripes() {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 8;
      const pen = tile.getContext("2d");
      pen.fillStyle = this.colour.idle;
      pen.fillRect(0, 0, 8, 8);
      pen.strokeStyle = this.colour.stripe;
      pen.globalAlpha = 0.5;
      pen.lineWidth = 1.6;
      for (const shift of [-8, 0, 8]) {
        pen.beginPath();
        pen.moveTo(shift, 8);
        pen.lineTo(shift + 8, 0);
        pen.stroke();
      }
      return this.pen.createPattern(tile, "repeat");
    }

    drawGaps(timeline, place) {
      const { pen } = this;
      const [top, bottom] = this.places[place].band;
      const { gaps, labels } = timeline;
      const perPixel = (this.to - this.from) / this.width;
      const pattern = this.stripes();
      let column = -1;
      let covered = 0;
      const flush = () => {
        if (covered > 0.02) {
          pen.globalAlpha = clamp(covered, 0.1, 1) * 0.7;
          pen.fillStyle = this.colour.idle;
          pen.fillRect(column, top, 1, bottom - top);
          pen.fillStyle = this.colour.stripe;
          pen.globalAlpha *= 0.35;
          pen.fillRect(column, top, 1, bottom - top);
        }
        covered = 0;
      };
      for (let i = firstOf(gaps, this.from); i < gaps.count && gaps.start[i] < this.to; i++) {
        const length = gaps.end[i] - gaps.start[i];
        const faded = this.isFaded(labels[gaps.label[i]][2]);
        if (length / perPixel < 1.5) {
          const x = Math.floor(this.x(gaps.start[i]));
          if (x !== column) {
            flush();
            column = x;
          }
          covered += (faded ? 0.3 : 1) * length / perPixel;
          continue;
        }
        const x = this.x(gaps.start[i]);
        pen.globalAlpha = faded ? 0.3 : 1;
        pen.fillStyle = pattern;
        pen.fillRect(x, top, length / perPixel, bottom - top);
        if (this.gap && this.gap[0] === place && this.gap[1] === i) {
          pen.strokeStyle = this.colour.accent;
          pen.lineWidth = 2;
          pen.strokeRect(x + 1, top + 1, Math.max(2, length / perPixel - 2), bottom - top - 2);
        }
      }
      flush();
      pen.globalAlpha = 1;
    }

    drawLane(lane, where, timeline, place) {
      const { pen, width } = this;
      const { spans } = lane;
      const colours = this.ofLabels[place];
      const { labels } = timeline;
      const perPixel = (this.to - this.from) / width;
      // Spans of less than a pixel share their column: as dark as it is covered.
      const columns = Array.from({ length: spans.rows }, () => ({ x: -1, covered: 0, most: 0, fill: "" }));
      const flush = (column, depth) => {
        if (column.covered <= 0) return;
        pen.globalAlpha = clamp(column.covered, 0.15, 1);
        pen.fillStyle = column.fill;
        pen.fillRect(column.x, where.base + depth * BASE, 1, BASE - 2);
        column.covered = column.most = 0;
      };
      for (let i = firstOf(spans, this.from); i < spans.count && spans.start[i] < this.to; i++) {
        if (spans.end[i] < this.from) continue;
        const label = labels[spans.label[i]];
        const faded = this.isFaded(label[2]);
        const size = (spans.end[i] - spans.start[i]) / perPixel;
        const x = this.x(spans.start[i]);
        const depth = spans.depth[i];
        const y = where.base + depth * BASE;
        if (size < 1.5) {
          const column = columns[depth];
          if (Math.floor(x) !== column.x) {
            flush(column, depth);
            column.x = Math.floor(x);
          }
          column.covered += faded ? size * 0.3 : size;
          if (size >= column.most) {
            column.most = size;
            column.fill = colours[spans.label[i]];
          }
          if (!faded && label[2] !== null) column.covered = Math.max(column.covered, 0.8);
          continue;
        }
        pen.globalAlpha = faded ? 0.3 : 1;
        pen.fillStyle = colours[spans.label[i]];
        const left = Math.max(x, -2);
        const right = Math.min(x + size, width + 2);
        pen.fillRect(left, y, Math.max(1, right - left - (size > 4 ? 1 : 0)), BASE - 2);
        if (right - left > 30) this.write(label, left + 4, y + BASE / 2 - 1, right - left - 8);
      }
      columns.forEach(flush);
      pen.globalAlpha = 1;
      this.name(lane.name, where.top + LABEL / 2 + 1);
    }

    name(text, y) {
      const { pen } = this;
      pen.textAlign = "left";
      const size = pen.measureText(text).width;
      pen.globalAlpha = 0.85;
      pen.fillStyle = this.colour.paper;
      pen.fillRect(4, y - 7, size + 8, 14);
      pen.globalAlpha = 1;
      pen.fillStyle = this.colour.ink;
      pen.fillText(text, 8, y);
    }

    write(label, x, y, room) {
      const { pen } = this;
      let text = label[0];
      const size = pen.measureText(text).width;
      if (size > room) {
        const letters = Math.floor((text.length * room) / size) - 1;
        if (letters < 3) return;
        text = `${text.slice(0, letters)}…`;
      }
      pen.fillStyle = readable(pen.fillStyle);
      pen.textAlign = "left";
      pen.fillText(text, x, y);
    }

    // A line from each wait to the gap that it exposed.
    drawJoins(timeline, place) {
      const { pen } = this;
      const where = this.places[place];
      const { gaps, labels } = timeline;
      const perPixel = (this.to - this.from) / this.width;
      pen.lineWidth = 1.5;
      for (let i = firstOf(gaps, this.from); i < gaps.count && gaps.start[i] < this.to; i++) {
        const row = labels[gaps.label[i]][2];
        if (row === null || (gaps.end[i] - gaps.start[i]) / perPixel < 3) continue;
        const wait = waitOf(timeline, row, gaps.start[i], gaps.end[i]);
        if (!wait) continue;
        const lane = where.lanes[wait.lane];
        const { spans } = timeline.lanes[wait.lane];
        const x1 = this.x(Math.min(spans.end[wait.span], gaps.end[i]));
        const y1 = lane.base + (spans.depth[wait.span] + 1) * BASE - 2;
        const x2 = this.x((gaps.start[i] + gaps.end[i]) / 2);
        const y2 = where.band[0] + 3;
        pen.globalAlpha = this.isFaded(row) ? 0.3 : 1;
        pen.strokeStyle = pen.fillStyle = this.colour.stripe;
        pen.beginPath();
        pen.moveTo(x1, y1);
        pen.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2 - 4);
        pen.stroke();
        pen.beginPath();
        pen.moveTo(x2 - 4, y2 - 5);
        pen.lineTo(x2 + 4, y2 - 5);
        pen.lineTo(x2, y2 + 2);
        pen.fill();
      }
      pen.globalAlpha = 1;
    }

    // How busy the devices are over the whole, and which part is shown.
    drawOverview() {
      const height = this.overviewHeight;
      const [pen, width] = this.sized(this.overview, height);
      if (!width) return;
      pen.fillStyle = this.colour.card;
      pen.fillRect(0, 0, width, height);
      this.busy ||= this.busyShares();
      const each = height / this.busy.length;
      this.busy.forEach((shares, row) => {
        shares.forEach((share, column) => {
          pen.globalAlpha = 1;
          pen.fillStyle = this.colour.kernel;
          const size = share * (each - 3);
          const x = (column * width) / shares.length;
          pen.fillRect(x, row * each + each - 1 - size, width / shares.length + 0.5, size);
        });
      });
      const left = (this.from / this.whole) * width;
      const right = (this.to / this.whole) * width;
      pen.globalAlpha = 0.65;
      pen.fillStyle = this.colour.paper;
      pen.fillRect(0, 0, left, height);
      pen.fillRect(right, 0, width - right, height);
      pen.globalAlpha = 1;
      pen.strokeStyle = this.colour.accent;
      pen.lineWidth = 2;
      pen.strokeRect(clamp(left, 1, width - 5), 1, Math.max(4, Math.min(width - 1, right) - clamp(left, 1, width) - 1), height - 2);
    }

    // The share of each of 400 parts in which the lane that has most work is at work.
    busyShares() {
      const parts = 400;
      return this.timelines.map((timeline) => {
        const shares = new Float64Array(parts);
        const devices = timeline.lanes.filter((lane) => lane.device);
        for (const { spans, device } of devices.length ? devices : timeline.lanes) {
          const own = new Float64Array(parts);
          for (let i = 0; i < spans.count; i++) {
            if (!device && spans.depth[i] > 0) continue;
            let at = (spans.start[i] / this.whole) * parts;
            const end = (spans.end[i] / this.whole) * parts;
            while (at < end && at < parts) {
              const next = Math.min(end, Math.floor(at) + 1);
              own[Math.floor(at)] += next - at;
              at = next;
            }
          }
          own.forEach((share, i) => { shares[i] = Math.min(1, Math.max(shares[i], share)); });
        }
        return shares;
      });
    }

    // --- moving ---

    show(from, to) {
      const length = clamp(to - from, Math.min(LEAST_US, this.whole), this.whole);
      const start = clamp((from + to - length) / 2, 0, this.whole - length);
      this.from = start;
      this.to = start + length;
      this.redraw();
    }

    zoom(times, at = (this.from + this.to) / 2) {
      const length = (this.to - this.from) / times;
      const share = (at - this.from) / (this.to - this.from);
      const from = at - share * length;
      this.show(from, from + length);
    }

    move(share) {
      const by = share * (this.to - this.from);
      this.show(this.from + clamp(by, -this.from, this.whole - this.to), this.to + clamp(by, -this.from, this.whole - this.to));
    }

    // The gap after or before the one that was shown last, longer than a thousandth of a step.
    step(direction) {
      const all = this.listedGaps();
      if (!all.length) return;
      const now = this.gap ? all.findIndex(([place, i]) => place === this.gap[0] && i === this.gap[1]) : -1;
      let next = now + direction;
      if (now < 0) {
        next = all.findIndex(([place, i]) => this.timelines[place].gaps.start[i] >= this.from);
        if (next < 0) next = 0;
      }
      this.showGap(...all[(next + all.length) % all.length]);
    }

    // Gaps that are worth a visit: of the chosen row, or else the longest 200, in order of time.
    listedGaps() {
      const all = [];
      this.timelines.forEach(({ gaps, labels }, place) => {
        for (let i = 0; i < gaps.count; i++) {
          if (chosen === null || labels[gaps.label[i]][2] === chosen) all.push([place, i, gaps.end[i] - gaps.start[i]]);
        }
      });
      all.sort((a, b) => b[2] - a[2]);
      return all.slice(0, 200).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([place, i]) => [place, i]);
    }

    showGap(place, i) {
      const { gaps, labels, steps } = this.timelines[place];
      const length = gaps.end[i] - gaps.start[i];
      this.gap = [place, i];
      this.show(gaps.start[i] - 2 * length, gaps.end[i] + 2 * length);
      const [cause, , row] = labels[gaps.label[i]];
      const line = row === null ? "" : `, ${data.rows[row]}`;
      this.said.textContent = `Gap of ${timeText(length)} in step ${above(steps, gaps.start[i])}: ${cause}${line}`;
    }

    showRow(row) {
      this.gap = null;
      const visible = this.timelines.some(({ gaps, labels }) => {
        for (let i = firstOf(gaps, this.from); i < gaps.count && gaps.start[i] < this.to; i++) {
          if (labels[gaps.label[i]][2] === row) return true;
        }
        return false;
      });
      if (!visible && row !== null) {
        const [first] = this.listedGaps();
        if (first) this.showGap(...first);
      }
      this.redraw();
    }

    // --- what the pointer and the keys do ---

    listen(box) {
      const actions = {
        "zoom-in": () => this.zoom(2),
        "zoom-out": () => this.zoom(0.5),
        whole: () => this.show(0, this.whole),
        left: () => this.move(-0.25),
        right: () => this.move(0.25),
        previous: () => this.step(-1),
        next: () => this.step(1),
      };
      box.addEventListener("click", (event) => {
        const action = event.target.closest("[data-action]");
        if (action) actions[action.dataset.action]();
      });
      const keys = {
        ArrowLeft: actions.left, ArrowRight: actions.right, "+": actions["zoom-in"], "=": actions["zoom-in"],
        "-": actions["zoom-out"], ArrowUp: actions["zoom-in"], ArrowDown: actions["zoom-out"], 0: actions.whole,
        n: actions.next, p: actions.previous, N: actions.next, P: actions.previous,
        Home: () => this.show(0, this.to - this.from),
        End: () => this.show(this.whole - (this.to - this.from), this.whole),
        Escape: () => choose(null),
      };
      this.canvas.addEventListener("keydown", (event) => {
        const act = keys[event.key];
        if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        act();
      });
      this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.drag();
      this.brush();
      this.canvas.addEventListener("dblclick", (event) => this.zoom(3, this.at(event)));
      this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      new ResizeObserver(() => this.redraw()).observe(this.canvas);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
      addEventListener("beforeprint", () => this.draw());
      addEventListener("afterprint", () => this.redraw());
    }

    at(event) {
      const box = this.canvas.getBoundingClientRect();
      return this.from + ((event.clientX - box.left) / box.width) * (this.to - this.from);
    }

    wheel(event) {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 200), this.at(event));
      else if (sideways) this.move(((event.deltaX || event.deltaY) / this.width));
      else return;
      event.preventDefault();
    }

    drag() {
      let from = null;
      let moved = 0;
      this.canvas.addEventListener("pointerdown", (event) => {
        from = event.clientX;
        moved = 0;
        this.canvas.setPointerCapture(event.pointerId);
      });
      this.canvas.addEventListener("pointermove", (event) => {
        if (from === null) {
          this.point(event);
          return;
        }
        moved += Math.abs(event.clientX - from);
        this.move((from - event.clientX) / this.width);
        from = event.clientX;
      });
      const end = (event) => {
        if (from !== null && moved < 4 && event.type === "pointerup") this.click(event);
        from = null;
      };
      this.canvas.addEventListener("pointerup", end);
      this.canvas.addEventListener("pointercancel", end);
    }

    // In the overview, the place that is pressed comes into the middle.
    brush() {
      const go = (event) => {
        if (event.type === "pointermove" && !event.buttons) return;
        const box = this.overview.getBoundingClientRect();
        const middle = ((event.clientX - box.left) / box.width) * this.whole;
        let half = (this.to - this.from) / 2;
        if (half * 2 > this.whole * 0.99) half = this.whole / 20;
        const centre = clamp(middle, half, this.whole - half);
        this.show(centre - half, centre + half);
      };
      this.overview.addEventListener("pointerdown", (event) => {
        this.overview.setPointerCapture(event.pointerId);
        go(event);
      });
      this.overview.addEventListener("pointermove", go);
    }

    // What lies under the pointer: a span, or else a gap.
    under(event) {
      const box = this.canvas.getBoundingClientRect();
      const y = event.clientY - box.top;
      const us = this.at(event);
      const near = (this.to - this.from) / this.width;
      for (let place = 0; place < this.timelines.length; place++) {
        const timeline = this.timelines[place];
        const where = this.places[place];
        if (y < where.top || y > where.bottom) continue;
        for (let number = 0; number < timeline.lanes.length; number++) {
          const lane = where.lanes[number];
          const depth = Math.floor((y - lane.base) / BASE);
          if (y < lane.base || y > lane.base + lane.height) continue;
          const span = spanAt(timeline.lanes[number].spans, us, depth, near);
          if (span >= 0) return { timeline, spans: timeline.lanes[number].spans, i: span };
        }
        if (y >= where.band[0] && y <= where.band[1]) {
          const gap = spanAt(timeline.gaps, us, 0, near);
          if (gap >= 0) return { timeline, spans: timeline.gaps, i: gap };
        }
      }
      return null;
    }

    point(event) {
      const found = this.under(event);
      this.tip.hidden = !found;
      if (!found) return;
      const { timeline, spans, i } = found;
      const [name, kind, row] = timeline.labels[spans.label[i]];
      const lines = [`${timeText(spans.end[i] - spans.start[i])} from ${timeText(spans.start[i], 5)}`];
      const step = above(timeline.steps, spans.start[i]);
      if (step) lines.push(`step ${step}`);
      if (row !== null) lines.push(data.rows[row]);
      const title = document.createElement("b");
      title.textContent = kind === "gap" ? `gap: ${name}` : name;
      const text = document.createElement("span");
      text.textContent = lines.join(", ");
      this.tip.replaceChildren(title, text);
      const box = this.canvas.getBoundingClientRect();
      const x = clamp(event.clientX - box.left + 14, 4, Math.max(4, box.width - this.tip.offsetWidth - 4));
      const below = event.clientY - box.top + 16;
      const fits = below + this.tip.offsetHeight < box.height;
      this.tip.style.left = `${x}px`;
      this.tip.style.top = `${fits ? below : Math.max(0, below - this.tip.offsetHeight - 28)}px`;
    }

    click(event) {
      const found = this.under(event);
      this.point(event);
      if (!found) return;
      const row = found.timeline.labels[found.spans.label[found.i]][2];
      if (row !== null) choose(row === chosen ? null : row);
    }
  }

  // Place of the first span that may reach into the view: the last outermost one that began before it.
  function firstOf(spans, from) {
    let at = above(spans.start, from, spans.count) - 1;
    while (at > 0 && spans.depth[at] > 0) at--;
    return Math.max(0, at);
  }

  function spanAt(spans, us, depth, near) {
    let best = -1;
    const until = above(spans.start, us + near, spans.count);
    for (let i = until - 1; i >= 0 && i > until - 5000; i--) {
      if (spans.depth[i] !== depth) continue;
      if (spans.end[i] >= us - near) best = i;
      if (spans.end[i] < us || spans.start[i] <= us) break;
    }
    return best;
  }

  // The wait that exposed a gap: the last of its line that began before the gap's end.
  function waitOf(timeline, row, start, end) {
    const waits = timeline.waits.get(row);
    if (!waits) return null;
    let low = 0;
    let high = waits.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (waits[middle].start <= end) low = middle + 1;
      else high = middle;
    }
    return low ? waits[low - 1] : null;
  }

  // Black or white, whichever can be read on a colour.
  function readable(background) {
    const value = parseInt(String(background).slice(1), 16);
    const [red, green, blue] = [value >> 16, (value >> 8) & 255, value & 255].map((part) => {
      const share = part / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#10131a" : "#ffffff";
  }

  // --- rows that can be chosen ---

  let widget = null;

  function choose(row) {
    chosen = row;
    for (const body of document.querySelectorAll("tbody[data-row]")) {
      const is = Number(body.dataset.row) === row && row !== null;
      body.classList.toggle("chosen", is);
      body.querySelector(".pick").setAttribute("aria-pressed", String(is));
    }
    if (widget) widget.showRow(row);
  }

  function listenToRows() {
    for (const body of document.querySelectorAll("tbody[data-row]")) {
      body.addEventListener("click", (event) => {
        if (String(getSelection()) || event.target.closest("pre, summary")) return;
        const row = Number(body.dataset.row);
        choose(row === chosen ? null : row);
      });
      body.querySelector(".pick").addEventListener("keydown", (event) => {
        const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
        const other = step && body[step] && body[step].querySelector(".pick");
        if (!other) return;
        event.preventDefault();
        other.focus();
      });
    }
    for (const button of document.querySelectorAll(".show-gap")) {
      button.addEventListener("click", () => {
        if (!widget) return;
        const place = Number(button.dataset.timeline);
        const { gaps } = widget.timelines[place];
        const at = above(gaps.start, Number(button.dataset.start) + 0.15, gaps.count) - 1;
        widget.showGap(place, Math.max(0, at));
        widget.canvas.scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
      });
    }
  }

  // What is folded is unfolded on paper.
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details:not([open])")) {
      folded.open = true;
      addEventListener("afterprint", () => { folded.open = false; }, { once: true });
    }
  });

  // --- tables that sort ---

  function sortBy(heading, place) {
    const table = heading.closest("table");
    const isNumber = heading.dataset.sort === "number";
    const before = heading.getAttribute("aria-sort");
    const first = isNumber ? "descending" : "ascending";
    const other = isNumber ? "ascending" : "descending";
    const order = before === first ? other : first;
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
    const valueOf = (body) => {
      const text = body.rows[0].cells[place].dataset.value;
      return text === undefined ? null : isNumber ? Number(text) : text;
    };
    const compare = (a, b) => {
      const [left, right] = [valueOf(a), valueOf(b)];
      if (left === null || right === null) return (left === null) - (right === null);
      const found = isNumber ? left - right : left.localeCompare(right, "en", { numeric: true });
      return order === "ascending" ? found : -found;
    };
    table.append(...[...table.tBodies].sort(compare));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, place) => {
      heading.querySelector("button").addEventListener("click", () => sortBy(heading, place));
    });
  }

  async function start() {
    listenToRows();
    const box = document.querySelector(".timelines");
    if (box && data.timelines.length) {
      widget = new Timelines(box, await Promise.all(data.timelines.map(unpackTimeline)));
      widget.draw();
    }
    performance.mark("ready");
    root.dataset.ready = "yes";
  }

  start();
})();
