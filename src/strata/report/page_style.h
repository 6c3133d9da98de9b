// The look of the HTML report and the script behind its tooltips. Never: content.
#pragma once

#include <string_view>

namespace strata::report {

inline constexpr std::string_view kPageStyle = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2330; --soft: #5c6778;
  --rule: #e3e7ed; --train: #2563c9; --eval: #d1495b; --violet: #7453c4; --green: #1c8a61; --amber: #b9770e; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b2129; --ink: #e8ecf2;
  --soft: #98a3b3; --rule: #2c343f; --train: #6ea8ff; --eval: #ff8d9b; --violet: #b39af5; --green: #5dd3a4;
  --amber: #f0b95c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 36px 20px 60px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0 0 10px; font-weight: 600; }
p.subtitle { margin: 0 0 24px; color: var(--soft); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin-bottom: 16px; }
.tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.card { padding: 16px 18px 10px; margin-bottom: 16px; position: relative; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 16px; }
.pair .card { margin-bottom: 0; } .pair { margin-bottom: 16px; }
.legend { float: right; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 16px; height: 3px; border-radius: 2px; margin: 0 5px 3px 14px;
  background: currentColor; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); opacity: .6; }
.tick { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.line path { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line circle { fill: currentColor; }
.raw path { stroke-width: 1.3; opacity: .35; }
.train, .raw { color: var(--train); } .eval { color: var(--eval); } .violet { color: var(--violet); }
.green { color: var(--green); } .amber { color: var(--amber); }
.cursor { stroke: var(--soft); stroke-dasharray: 3 3; }
.tip { position: absolute; pointer-events: none; background: var(--ink); color: var(--page); font-size: 12px;
  border-radius: 6px; padding: 5px 9px; white-space: nowrap; font-variant-numeric: tabular-nums; z-index: 2; }
.note { color: var(--soft); font-size: 12px; margin: 4px 0 0; text-align: right; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
td { border-top: 1px solid var(--rule); padding: 5px 8px; vertical-align: top; overflow-wrap: anywhere; }
tr:first-child td { border-top: 0; }
td:first-child { color: var(--soft); width: 38%; }
summary { cursor: pointer; font-weight: 600; padding-bottom: 6px; }
.sample { border-top: 1px solid var(--rule); padding: 10px 0; } .sample:first-of-type { border-top: 0; }
.sample p { margin: 3px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.sample em { font-style: normal; color: var(--soft); font-size: 12px; display: inline-block; width: 62px; }
.sample .after { color: var(--green); } .sample .before { color: var(--soft); }
footer { color: var(--soft); font-size: 12.5px; text-align: center; margin-top: 26px; }
)css";

// Shows the values under the pointer. `charts` is the page's data: for each svg in document order a
// list of {name, unit, points: [[x, y], ...]}.
inline constexpr std::string_view kPageScript = R"js(
const show = v => Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString() : String(+v.toPrecision(4));
document.querySelectorAll('svg').forEach((svg, k) => {
  const card = svg.closest('.card'), d = svg.dataset, n = key => +d[key];
  const cursor = document.createElementNS('http://www.w3.org/2000/svg', 'line');
  cursor.setAttribute('class', 'cursor');
  cursor.setAttribute('y1', d.top); cursor.setAttribute('y2', d.bottom);
  const tip = document.createElement('div');
  tip.className = 'tip';
  const hide = () => { cursor.remove(); tip.remove(); };
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), zoom = svg.viewBox.baseVal.width / box.width;
    const share = ((event.clientX - box.left) * zoom - n('left')) / (n('right') - n('left'));
    if (share < -.02 || share > 1.02) return hide();
    const x = n('x0') + share * (n('x1') - n('x0'));
    const near = charts[k].map(s => s.points.reduce((a, p) => Math.abs(p[0] - x) < Math.abs(a[0] - x) ? p : a));
    const at = near.reduce((a, p) => Math.abs(p[0] - x) < Math.abs(a[0] - x) ? p : a)[0];
    const px = n('left') + (at - n('x0')) / (n('x1') - n('x0')) * (n('right') - n('left'));
    cursor.setAttribute('x1', px); cursor.setAttribute('x2', px);
    svg.append(cursor);
    tip.textContent = 'step ' + Math.round(at) + charts[k].map((s, i) =>
      near[i][0] === at ? '  ·  ' + s.name + ' ' + show(near[i][1]) + s.unit : '').join('');
    card.append(tip);
    const left = box.left - card.getBoundingClientRect().left + px / zoom;
    tip.style.top = svg.offsetTop - 6 + 'px';
    tip.style.left = Math.max(6, Math.min(left - tip.offsetWidth / 2, card.clientWidth - tip.offsetWidth - 6)) + 'px';
  });
});
)js";

}  // namespace strata::report
