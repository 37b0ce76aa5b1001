"""A JPEG of each kind that our own decoder takes, 72 x 40 pixels, for its self-test."""

import zlib
from base64 import b85decode
from typing import Final

HEIGHT: Final = 40
WIDTH: Final = 72
SIZES_BYTES: Final = {
    "4:2:0": 901,
    "4:4:4, long codes": 931,
    "4:2:2": 514,
    "grey": 330,
    "progressive": 765,
    "restarts": 506,
}

# All, one behind the other, made by Pillow; tests/test_selftest.py sees that they are what they are called.
PACKED: Final = (
    "c-qxhX;@R|5<Vw8iy<coBt!^?C4fLA35XI|q7Zgu-$Vo<APOprs3@&cP^u!bMX*)N5}{HNP_Tk^R|FI#A|PPh5JeCbSrlv2liaEe"
    "Pj8>=y}$0{*Lmif`R4s*-kFKCNBRIDxC&eZ00;sA2>$?SAFu?NrKGH)jGLvRtb)hSQX|b#ClQGxLoGUG4$GKr&N4PL<yyPia_0-I"
    "OwH^A`2u%OA73AiZAe6jSGcRU&r+Ea5Rb=`AQDquow?M~%yQ`$i}XAI;Q%AR842nF2na+%p!71J1ILL5<pTUEAOeX(W3V_lX!t-q"
    "0YHFABm#v*qfsbWn+EFv6oe)+*nAAhI|8elK;~@EEy3w6uDzh{)A355yD~9dNm+wJ)ub6P4ULTFT3F7vTCmW1iG!oS$=Su#*Uvv7"
    "Feo@AGD;X7vnqCVQu2nBjhi;7ev^^8V`tX4yYli23Pt;iiVu{Qm5Yy5RQ`Ch?!?LZhEqSEZoGKu@|CO2*IHU7w>$52b@$xuefa3{"
    "z>~qJ&xW4A9(yxBF*)`2-LwoB2q3|a^0&Ak7#9MCLZYxTTp(hj>;Qy9GuRj+-y0i|K+@%G$B`H3megKQ(&PHPQeT<ap{${A@zCJ4"
    "44NF-e+Df5ze4s2*k@e5fGQG%lZS)=J75@E?PW~%tvXcin^$PgEKL!o938XSe8(_JB6g2E?sp{butnkG*tFqU?QiX)#@=^r9lQN>"
    "|FM`G25WGk_apLM9Q{SECJh$jjB68~1y@%GSgPiPPRtD*GxnXW*A;e@zQ$N@kMKLH=9K!{;JJGw-Bw)BrxpAKE-uOJAGSFHN{iyx"
    "Ru%<h`>Add1f{F-cK(LanlSM%$xS`}+{AP98e914#-IxCXW2ELL1EDc`%XRl+K$6atHg?ZMXp=x{1?)zzh{lAuU>xIwk#@jF4H2g"
    "OgTg=@y8#B*WL*THYz=v>h70k>|qdd(~RtQd1M!NP*mw*Kn@h@?`Tc535+h?HU8|1R{d<f(p@GUd;Irmw)9KyO8*@R(MS}WZ8+B`"
    "G#V}gRU8%;H5C;lRY;9Ugw!C2q@hJ2k!k7>L}gHE+S)ogIwXp&zAjx~i>^bLlMpt=Vz77|4o@dTWcnA&Uq}djCLv80D)KV}0RRI>"
    "i^Ixv1_byE34loSCnbnPK@0?%O~hbHdYtsy4*1w?*czeW0``EwU_l(LG=lF!AV3g<{iH?0wGR=|3|)3fZ3l)#R_E}270YXiS$RQS"
    "DKRY8#rw=5b9>XByGsoF$I=ltmx6{Y`m0bWN^3Ct@_0|pomOU#m=|IjJRik57>P3{b9j-~-NIf!larhKD1LQbXIuJjWO|kImN|tP"
    "WDxFh=<6@*UyF9IcltR-n^~0^-iS*Q+{*LqhUTmNGReurPO?hl_?)@o9rM@mBIkAspUXXIbk(gIQ5iWnd2y9@b_KtAG&;_5Z(bEE"
    "<vxzT?{Ps16J3!0O#8;{W*7FOS5Dzwp+aT!mhI{9)jWC8-D<i1ixwq}=@#82@vI-JzFO`d6)<(sVco6X-|4GsxuU`Ls@ZS8&FL8I"
    "{bjA`hN4IJS9N%V#P_`|t@6unRx@4SM)VHNZ$qn|c!%44&P{8#Nt^z3+0*B=rkA1b+<UuD(VCU^S{^fVempi<%WV$GdR$q3G_m`f"
    "VP)5|D`z}nopYMgnqEAC)(%W9teY;%8Wp^}%H;f{EuJcOd`B5y%|4uCt1)&sa_IiKaVaqLWL+e2_<+Z2_jc8aNuxT(-tPj>ORTTD"
    "j&WI6+J~*j(=iu1Z)7A$l-r)|c(IvVGiZ(MztrU4j*G31JrY@d;Ke3A4Cg&<vGW$J_x!oNDW-*(hPCe_so7c8+vCgHdukdrs%R>4"
    "zouMN@*cSs6aL(N#5`kP*nr{gmV-N9-|||cwA+{&F_Mh7sn}>8f*VN;s5z36t8+S?M}85JT)D7rV;@zCC3ht%WCfJOf7jk~R$ROZ"
    "GoN)Nj+K!cb{Si(-+pP+Go$*9!p?ji{_zj&8<u+pF8w@&*^=`Q6eZ);h-$OQL;{hbPNvd147!#U-Nuxq&vCJLcXP5AIC_O7t@QGb"
    "4{#JjWeMXq!U^8)8J@j=Pnsy{tL<Cm6ji5C=rlTy!QgH675HxbV)+Y28447Y50uaRLcx5)pk+EO0<2QxuWZ&pFtuQ<Ca5@GVM`<$"
    "L;y0<Lf{M~%svJZB6-iGq6cx&G<&^w!4Z|X>l#-4@jBBpxydz+!Tp6<jln4FJkhX(;n85LeDZpA`cQGYt%%}gXrjN|lqp(fFly6*"
    "8hB#alz1$+FXlmABf8zcg8nEleq!1o)${e+Rm)norUjmuAa9mTq>-khyFdIU1x~eASNt#)!%2&i0uIUIOmB45z=o!V>(BRmV804l"
    "zC+UD+Cp(t5*M@tSoUlw*<?I)BJLaRA*Zl=_q?+^_MBQTkX#&!QDTtXW{LM-*pQPP=^j(;<l&>*a;>WGA1dH~-jvP*D)QukaDSDj"
    "O`e+1Zx6sb00M4=u#N$5HgL;?_aDWs$Y!AV5hbM^a1L;?=<I;6wHLiA&r~yx^s7#%)}LhceY>!{e`j*M@`GuSm1{;;$CV0u%>*m+"
    "?<YUB6ysl3M7uUq>^o@ln;bPsv7MOj%bnJ}&DXej<@mDco3DnYfJweUSogeP$hvcQg|qGe?`+<f_U&5~5A08?24n1BMhI&7FNUlb"
    "_r~|{8_lQxI-PoKO<DNMh=3Z$7t8@(`SqR2MUzvKq@u6?;Ux(ws(4jp0)7^r2oXqBBN|mhgUZ%3&^EH>+ALbgU0`MJ9O`NB5a?*N"
    "z$@N6aK*})RWY_637gkPZ3-2}M9R4Y5s6fF>O2~4UgY8hizB~Sq!<5g=aeT!ff4XXL!dBdSVx(`75FFu1$?9f0SQk-a5}^j*LEmP"
    "+0(q0mf6cRoz{=$vQnML6Jkn@%Q%U(0;hRy=9eVf60goVXo~sf8s1J$Qkmbs<QjgdIS3>HA~OC=G>ArAGOcUdAru8S`@Yl(czqZC"
    "Y}XWu5@az$a1|jH0s|2Qh(VGY!*J}t0$1YI7Kb+#RmRzQrtHJ85fz$=Muq{Bn;>K+UE&9Pvys?z?xGuc^I!uqLE#2iy#5RhV~4Pk"
    "g+Z9PDS!Y0n#1OQ#9+rz{iz8EcH5?*8Q*DB|67AWhw=Kl2WZna7U0uv_wga+lpt8HE4Z0=TIc>fRXgd&ek9u>6urZHe#9q~gw}hW"
    "N<H)yoZe$?2+~5{Ia!B;X0%4w4q_14pKuZ$rUo@1(x$P7wq1mjp(U`5HjETR&AiH-J%>@U{Sy|#KF2{zepYIsv&y}Y=AO|ldS|v+"
    ")9M}^C=NgHi|_x@AW<xS#XSw42MBl|U_REUVtx_er$IuUIY<6ANaT5w7pFp@!T)6#M6&drY)&aolm6o1A}%5@;?WYXV=49iw>B(U"
    "sV2SE-8fGo84{*0)8E=c7X^yNlGfyUrmK#$V~IGEVlULPSZ346E8DQ#$I4z;O)BYaG<YgZem!bvGdlhI@g_6L-DRWAkHbQu!`^;K"
    "8u|Uv?Di9*UmYA0T89i9u+MoMmfm))>YSdJQh0YuNomRrlVc6-{wOPck`{irLfYAX)HfMvwkyL-(mGzFwHT7#Ss@k;g(GpdS5CRE"
    "vA3c*m>rgOy*ZC~vVLM|h4k(pW)45q"
)


def tiny_jpegs() -> dict[str, bytes]:
    """Each by its kind."""
    jpegs, at = {}, 0
    together = zlib.decompress(b85decode(PACKED))
    for kind, size_bytes in SIZES_BYTES.items():
        jpegs[kind] = together[at : at + size_bytes]
        at += size_bytes
    return jpegs
